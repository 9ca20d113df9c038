"""Where a configuration may stand, in which forms, and which source wins."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracker_bridge.config import Config, GradientsConfig, RouteConfig, load_config, locate_queue, redact, restore

Load = Callable[..., Config]

FULL = {
    "project": "nlp/bert",
    "experiment": "gradient_tracking",
    "tags": ["gradient_tracking", "pytorch"],
    "backends": {
        "alpha": {"mode": "offline", "route": {"every_n_steps": 50, "group_by": "block"}},
        "alpha-prod": {"adapter": "alpha", "tracking_uri": "${env:PROD_URI}"},
    },
    "gradients": {"every_n_steps": 10, "include": ["bert.encoder.layer.*"], "exclude": ["*.bias"], "norm_type": "inf"},
    "queue": {"dir": "somewhere", "max_disk": "1.5GiB", "when_full": "drop_newest"},
    "delivery": {"mode": "thread", "close_timeout": "2min"},
}

YAML = """
project: nlp/bert
experiment: gradient_tracking
tags: [gradient_tracking, pytorch]
backends:
  alpha: {mode: offline, route: {every_n_steps: 50, group_by: block}}
  alpha-prod: {adapter: alpha, tracking_uri: "${env:PROD_URI}"}
gradients: {every_n_steps: 10, include: ["bert.encoder.layer.*"], exclude: ["*.bias"], norm_type: .inf}
queue: {dir: somewhere, max_disk: 1.5GiB, when_full: drop_newest}
delivery: {mode: thread, close_timeout: 2min}
"""

TOML = """
project = "nlp/bert"
experiment = "gradient_tracking"
tags = ["gradient_tracking", "pytorch"]
[backends.alpha]
mode = "offline"
route = {every_n_steps = 50, group_by = "block"}
[backends.alpha-prod]
adapter = "alpha"
tracking_uri = "${env:PROD_URI}"
[gradients]
every_n_steps = 10
include = ["bert.encoder.layer.*"]
exclude = ["*.bias"]
norm_type = inf
[queue]
dir = "somewhere"
max_disk = "1.5GiB"
when_full = "drop_newest"
[delivery]
mode = "thread"
close_timeout = "2min"
"""


def check_full(config: Config, cwd: Path) -> None:
    assert (config.project, config.experiment, config.name) == ("nlp/bert", "gradient_tracking", None)
    assert config.tags == {"gradient_tracking": None, "pytorch": None}
    first, second = config.backends
    assert (first.name, first.adapter, first.options) == ("alpha", "alpha", {"mode": "offline"})
    assert first.route == RouteConfig(every_n_steps=50, group_by="block")
    assert (second.name, second.adapter, second.options) == ("alpha-prod", "alpha", {"tracking_uri": "http://prod"})
    assert config.gradients == GradientsConfig(
        every_n_steps=10, include=("bert.encoder.layer.*",), exclude=("*.bias",), norm_type=math.inf
    )
    assert config.queue.dir == cwd / "somewhere"
    assert (config.queue.max_disk, config.queue.when_full) == (3 * 2**29, "drop_newest")
    assert (config.delivery.mode, config.delivery.close_timeout) == ("thread", 120.0)


@pytest.mark.parametrize(
    ("name", "text"), [("t.yaml", YAML), ("t.yml", YAML), ("t.toml", TOML), ("t.json", json.dumps(FULL))]
)
def test_every_file_format_gives_the_same_configuration(load: Load, tmp_path: Path, name: str, text: str) -> None:
    """YAML, TOML and JSON files with the same content load to the same configuration, which names its file."""
    (tmp_path / name).write_text(text)
    config = load(name, environ={"PROD_URI": "http://prod"})
    check_full(config, tmp_path)
    assert config.origin == name


def test_a_mapping_is_a_configuration(load: Load, tmp_path: Path) -> None:
    """A plain mapping loads like a file with its content."""
    check_full(load(FULL, environ={"PROD_URI": "http://prod"}), tmp_path)


def test_a_dataclass_is_a_configuration(load: Load) -> None:
    """A dataclass instance loads by its fields; those that are None count as unset."""

    @dataclasses.dataclass
    class Delivery:
        mode: str = "thread"

    @dataclasses.dataclass
    class Tracking:
        project: str | None = None
        backends: list[str] = dataclasses.field(default_factory=lambda: ["alpha"])
        delivery: Delivery = dataclasses.field(default_factory=Delivery)

    config = load(Tracking())
    assert config.project is None
    assert [backend.name for backend in config.backends] == ["alpha"]
    assert config.delivery.mode == "thread"


def test_a_dictconfig_is_a_configuration(load: Load, tmp_path: Path) -> None:
    """OmegaConf's own interpolation is resolved by OmegaConf, `${env:...}` by the bridge."""
    from omegaconf import OmegaConf

    source = OmegaConf.create({**FULL, "experiment": "${tags.0}"})
    check_full(load(source, environ={"PROD_URI": "http://prod"}), tmp_path)


def test_omegaconf_is_not_imported_for_a_mapping(tmp_path: Path) -> None:
    """Loading from a mapping or a TOML file imports neither OmegaConf nor the YAML reader, torch or an SDK."""
    (tmp_path / "tracker_bridge.toml").write_text('backends = ["jsonl", "tensorboard"]')
    code = (
        "import sys; from tracker_bridge.config import load_config; load_config();"
        "load_config({'backends': ['jsonl']});"
        "print([m for m in ('omegaconf', 'ruamel.yaml', 'torch', 'tensorboard', 'wandb', 'mlflow', 'neptune_scale') "
        "if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_working_directory_is_searched_in_the_documented_order(load: Load, tmp_path: Path) -> None:
    """yaml, yml, toml, pyproject.toml, then the TensorBoard default; the named file goes before all of them."""
    assert [backend.name for backend in load().backends] == ["tensorboard"]
    assert load().origin == "default"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load().origin == "default"
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tracker_bridge]\nproject = "from pyproject"\nbackends = ["alpha"]\n'
    )
    assert (load().project, load().origin) == ("from pyproject", "pyproject.toml [tool.tracker_bridge]")
    for name, line in (
        ("tracker_bridge.toml", 'project = "from toml"'),
        ("tracker_bridge.yml", "project: from yml"),
        ("tracker_bridge.yaml", "project: from yaml"),
    ):
        (tmp_path / name).write_text(line)
        assert (load().project, load().origin) == (line.split("from ")[1].strip('"').join(("from ", "")), name)
    (tmp_path / "named.toml").write_text('project = "from the variable"')
    assert load(environ={"TRACKER_BRIDGE_CONFIG": "named.toml"}).project == "from the variable"
    assert load("tracker_bridge.toml", environ={"TRACKER_BRIDGE_CONFIG": "named.toml"}).project == "from toml"


def test_arguments_win_over_environment_over_file_over_default(load: Load, tmp_path: Path) -> None:
    """Each key takes the value of the highest source that gives one."""
    file = {"project": "f", "experiment": "f", "name": "f", "backends": ["alpha"]}
    environ = {"TRACKER_BRIDGE_PROJECT": "e", "TRACKER_BRIDGE_EXPERIMENT": "e", "TRACKER_BRIDGE_DIR": "/e"}
    config = load(file, environ=environ, project="a", dir=tmp_path / "a")
    assert (config.project, config.experiment, config.name, config.run_id) == ("a", "e", "f", None)
    assert config.queue.dir == tmp_path / "a"
    assert load(file, environ=environ).queue.dir == Path("/e")


def test_tags_and_params_of_all_sources_are_united(load: Load) -> None:
    """Tags and params add up; for the same name the higher source gives the value."""
    config = load(
        {"backends": [], "tags": {"a": "file", "b": "file"}, "params": {"lr": 1, "seed": 2}},
        environ={"TRACKER_BRIDGE_TAGS": "c, d"},
        tags={"a": "argument"},
        params={"lr": 3},
    )
    assert config.tags == {"a": "argument", "b": "file", "c": None, "d": None}
    assert config.params == {"lr": 3, "seed": 2}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("one, text", {"one, text": None}),
        (["a", "a", 2024, 1.5], {"a": None, "2024": None, "1.5": None}),
        ({"seed": 1, "gpu": True, "note": None}, {"seed": "1", "gpu": "true", "note": None}),
        ({"b", "a"}, {"a": None, "b": None}),
    ],
)
def test_tags_are_taken_in_every_form(load: Load, tags: Any, expected: dict[str, str | None]) -> None:
    """One text is one tag, never its letters; lists, sets and mappings are taken; numbers become text."""
    assert load({"backends": []}, tags=tags).tags == expected


@pytest.mark.parametrize(
    "backends",
    [
        "alpha, alpha-2",
        ["alpha", {"alpha-2": {"adapter": "alpha"}}],
        [{"alpha": None}, {"alpha-2": {"adapter": "alpha"}}],
        {"alpha": None, "alpha-2": {"adapter": "alpha"}},
    ],
)
def test_backends_are_taken_in_every_form(load: Load, backends: Any) -> None:
    """A text, a list of names, a list of one-key mappings and a mapping all name the same backends."""
    below = {"backends": {"alpha-2": {"adapter": "alpha"}}}
    config = load(below, backends=backends)
    assert [(backend.name, backend.adapter) for backend in config.backends] == [
        ("alpha", "alpha"),
        ("alpha-2", "alpha"),
    ]


@pytest.mark.parametrize("none", ["none", "None", [], {}])
def test_no_backends_can_be_asked_for(load: Load, none: Any) -> None:
    """`none` and an empty list leave a run without backends instead of the default."""
    assert load({"backends": none}).backends == ()


def test_backend_configs_are_taken_as_arguments(load: Load) -> None:
    """`BackendConfig`s of one configuration can be given to another."""
    first = load(FULL, environ={"PROD_URI": "http://prod"})
    assert load({"backends": []}, backends=list(first.backends)).backends == first.backends


def test_a_list_of_names_keeps_the_options_of_the_file(load: Load) -> None:
    """`TRACKER_BRIDGE_BACKENDS` and `backends=` choose among backends without losing their options."""
    file = {"backends": {"alpha": {"port": 5}, "alpha-b": {"adapter": "alpha", "port": 6}}}
    chosen = load(file, environ={"TRACKER_BRIDGE_BACKENDS": "alpha-b"}).backends
    assert [(backend.name, backend.options) for backend in chosen] == [("alpha-b", {"port": 6})]
    assert load(file, environ={"TRACKER_BRIDGE_BACKENDS": "alpha-b"}, backends=["alpha"]).backends[0].options == {
        "port": 5
    }
    assert load(file, environ={"TRACKER_BRIDGE_BACKENDS": "none"}).backends == ()


def test_options_merge_key_by_key_unless_the_adapter_differs(load: Load) -> None:
    """Options of a higher source are laid over those below, but never over those of another kind of tracker."""
    file = {"backends": {"main": {"adapter": "alpha", "port": 5, "mode": "offline"}}}
    assert load(file, backends={"main": {"port": 6}}).backends[0].options == {"port": 6, "mode": "offline"}
    other = load(file, backends={"main": {"adapter": "beta", "entity": "me"}}).backends[0]
    assert (other.adapter, other.options) == ("beta", {"entity": "me"})


def test_what_is_not_chosen_is_not_checked(load: Load) -> None:
    """A backend that another source's list leaves out needs neither its SDK nor its variables."""
    file = {"backends": {"absent": {}, "alpha": {"tracking_uri": "${env:UNSET}"}, "beta": {"entity": "me"}}}
    assert [backend.name for backend in load(file, backends=["beta"]).backends] == ["beta"]


def test_environment_options_are_typed_by_the_adapter(load: Load) -> None:
    """Text from the environment becomes what the option's type is; names ignore case, dashes and dots."""
    environ = {
        "TRACKER_BRIDGE_ALPHA_2__PORT": "7",
        "tracker_bridge_alpha_2__verbose": "true",
        "TRACKER_BRIDGE_ALPHA_2__RATIO": "0.25",
        "TRACKER_BRIDGE_ALPHA_2__LABELS": "a, b",
        "TRACKER_BRIDGE_ALPHA_2__SETTINGS": '{"x": {"y": 1}}',
        "TRACKER_BRIDGE_ALPHA_2__SETTINGS__X__Z": "2",
        "TRACKER_BRIDGE_ALPHA_2__ROUTE__EVERY_N_STEPS": "50",
        "TRACKER_BRIDGE_ALPHA_2__ROUTE__INCLUDE": "loss,gradients/*",
        "TRACKER_BRIDGE_ALPHA_2__TRACKING_URI": "",
    }
    (backend,) = load(
        {"backends": {"alpha-2": {"adapter": "alpha", "tracking_uri": "http://x"}}}, environ=environ
    ).backends
    assert backend.options == {
        "tracking_uri": "http://x",
        "port": 7,
        "verbose": True,
        "ratio": 0.25,
        "labels": ["a", "b"],
        "settings": {"x": {"y": 1, "z": "2"}},
    }
    assert backend.route == RouteConfig(every_n_steps=50, include=("loss", "gradients/*"))


def test_environment_sets_every_section(load: Load) -> None:
    """Sections that the file does not have are made by a variable."""
    config = load(
        {"backends": []},
        environ={
            "TRACKER_BRIDGE_GRADIENTS__EVERY_N_STEPS": "5",
            "TRACKER_BRIDGE_GRADIENTS__NORM_TYPE": "inf",
            "TRACKER_BRIDGE_DELIVERY__MODE": "thread",
            "TRACKER_BRIDGE_DELIVERY__CLOSE_TIMEOUT": "5",
            "TRACKER_BRIDGE_QUEUE__MAX_DISK": "1048576",
            "TRACKER_BRIDGE_RUN_ID": "r1",
            "TRACKER_BRIDGE_NAME": "n",
            "TRACKER_BRIDGE_RESUME": "1",
        },
    )
    assert config.gradients == GradientsConfig(every_n_steps=5, norm_type=math.inf)
    assert (config.delivery.mode, config.delivery.close_timeout) == ("thread", 5.0)
    assert (config.queue.max_disk, config.run_id, config.name, config.resume) == (2**20, "r1", "n", True)
    assert load({"backends": []}).gradients is None


def test_references_are_replaced_and_typed(load: Load) -> None:
    """`${env:NAME}`, defaults, several in one text, numbers, and `$${env:` for the characters themselves."""
    environ = {"PORT": "5000", "HOST": "h", "EMPTY": ""}
    options = {
        "port": "${env:PORT}",
        "tracking_uri": "http://${env:HOST}:${env:PORT}/${env:PATH_PART:a/b}${env:EMPTY}",
        "settings": {"deep": ["${env:HOST}"], "literal": "$${env:HOST}"},
    }
    (backend,) = load({"backends": {"alpha": options}}, environ=environ).backends
    assert backend.options == {
        "port": 5000,
        "tracking_uri": "http://h:5000/a/b",
        "settings": {"deep": ["h"], "literal": "${env:HOST}"},
    }


def test_what_belongs_to_other_tools_stays_as_it_is(load: Load) -> None:
    """`$${...:` is text everywhere; in params and tags, so is what looks nothing like `env`; `${NAME}` always is."""
    source = {
        "tags": ["${SHELL}", "${gpu:0}"],
        "params": {"cmd": "train ${OUT:-runs} $${OUT:-runs} ${x.y}", "near": "$${envv:A}"},
        "backends": {"alpha": {"settings": {"job": "$${hydra:job.name} ${step}"}}},
    }
    config = load(source)
    assert list(config.tags) == ["${SHELL}", "${gpu:0}"]
    assert config.params == {"cmd": "train ${OUT:-runs} $${OUT:-runs} ${x.y}", "near": "${envv:A}"}
    assert config.backends[0].options == {"settings": {"job": "${hydra:job.name} ${step}"}}
    assert restore(redact(config), {}).backends == config.backends


def test_a_run_of_an_earlier_version_is_restored_whatever_its_options_hold(load: Load) -> None:
    """Texts with `${...:...}` in a `run.json` are what was delivered before, not typing mistakes."""
    written = redact(load({"backends": {"alpha": {"tracking_uri": "x"}}}))
    written["backends"]["alpha"]["tracking_uri"] = "a/${now:%Y}"
    assert restore(written, {}).backends[0].options == {"tracking_uri": "a/${now:%Y}"}


def test_references_in_arguments_are_plain_text(load: Load) -> None:
    """Only configurations are interpolated: a param that looks like a reference stays what the script said."""
    assert load({"backends": []}, params={"p": "${env:HOME}"}).params == {"p": "${env:HOME}"}


def test_a_config_is_changed_by_arguments_only(load: Load) -> None:
    """A loaded `Config` as the source ignores the environment, takes arguments, and keeps untouched references."""
    first = load(FULL, environ={"PROD_URI": "http://prod"})
    assert load(first) == first
    second = load(
        first, environ={"TRACKER_BRIDGE_PROJECT": "ignored"}, name="new", backends={"alpha-prod": {"port": 3}}
    )
    assert (second.project, second.name) == ("nlp/bert", "new")
    assert second.backends[0].options == {"tracking_uri": "http://prod", "port": 3}
    assert second.references == first.references == {("backends", "alpha-prod", "tracking_uri"): "${env:PROD_URI}"}
    replaced = load(first, backends={"alpha-prod": {"tracking_uri": "http://other"}})
    assert replaced.references == {}


def test_a_single_pattern_needs_no_list(load: Load) -> None:
    """`include: "a.*"` means the same as a list of that one pattern."""
    config = load({"backends": [], "gradients": {"include": "a,b.*"}})
    assert config.gradients == GradientsConfig(include=("a,b.*",))


def test_the_queue_is_found_whatever_else_is_wrong(tmp_path: Path) -> None:
    """Commands find the runs by the same rules although a backend's SDK is missing or an option is unknown."""
    (tmp_path / "tracker_bridge.yaml").write_text(
        "backends: {absent: {}, wrong: {x: 1}}\nqueue: {dir: 'q/${env:WHO:me}'}"
    )
    assert locate_queue(environ={}, cwd=tmp_path) == tmp_path / "q" / "me"
    assert locate_queue(environ={"TRACKER_BRIDGE_DIR": "/elsewhere", "TRACKER_BRIDGE_X__Y": "1"}, cwd=tmp_path) == Path(
        "/elsewhere"
    )
    (tmp_path / "tracker_bridge.yaml").unlink()
    assert locate_queue(environ={}, cwd=tmp_path) == tmp_path / "tracker_bridge_runs"
    assert load_config({"backends": []}, environ={}, cwd=tmp_path).queue.dir == tmp_path / "tracker_bridge_runs"
