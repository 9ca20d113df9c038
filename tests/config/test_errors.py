"""Every bad input gives one `ConfigError` that names the place, what was found and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracker_bridge.config import Config, ConfigError
from tracker_bridge.errors import BridgeError

Load = Callable[..., Config]
KEYS = (
    "Valid keys: backends, delivery, experiment, gradients, health, name, params, project, queue, ranks, resume, "
    "run_id, tags"
)
OPTIONS = "api_key, labels, mode, port, ratio, settings, tracking_uri, verbose"
KINDS = "absent, alpha, beta, console, jsonl, memory, mlflow, neptune, tensorboard, wandb"


def message(load: Load, *arguments: Any, **keywords: Any) -> str:
    """The text of the error, which has no cause that a traceback would show."""
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **keywords)
    assert isinstance(caught.value, BridgeError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in str(caught.value)
    return str(caught.value)


GIVEN = "the given configuration: "
PATTERN = "found 'a[b', expected a glob whose [ is closed by ] (write [[] for the character itself)"
CASES: list[tuple[Any, str]] = [
    ({"bakends": 1}, f"unknown key 'bakends'; did you mean 'backends'? {KEYS}"),
    ({"zzz": 1}, f"unknown key 'zzz'. {KEYS}"),
    ({7: 1}, f"unknown key '7'. {KEYS}"),
    ({"project": 5}, 'project: found 5, expected text; write it in quotes: "5"'),
    ({"project": True}, "project: found true, expected text"),
    ({"name": " "}, "name: found ' ', expected text that is not empty"),
    (
        {"run_id": "a/b"},
        "run_id: found 'a/b', expected up to 128 letters, digits, '-', '_' and '.', a letter or digit first",
    ),
    ({"resume": "yes"}, "resume: found 'yes', expected true or false"),
    ({"tags": 5}, "tags: found 5, expected a list of texts or a mapping"),
    ({"tags": [["a"]]}, "tags: found a list as a tag, expected text"),
    ({"tags": {"a": []}}, "tags.a: found a list, expected text or nothing"),
    ({"params": [1]}, "params: found a list, expected a mapping"),
    (
        {"backends": 5},
        "backends: found 5, expected a list of names, or a mapping from each name to its options "
        "(backends: {tensorboard: {log_dir: runs}, wandb: {}})",
    ),
    (
        {"backends": [{"alpha": None, "mode": "offline"}]},
        "backends[0]: found a mapping of 2 keys (alpha, mode), expected a name, or a mapping from one name to its "
        "options (- wandb: {mode: offline})",
    ),
    ({"backends": {"alpha": "offline"}}, "backends.alpha: found 'offline', expected a mapping of options or nothing"),
    (
        {"backends": ["alpha", "alpha"]},
        "backends: 'alpha' is listed twice; give one of them a name of its own and adapter: alpha",
    ),
    (
        {"backends": ["a-b", "a_b"]},
        "backends: 'a-b' and 'a_b' cannot be told apart in environment variables; rename one of them",
    ),
    (
        {"backends": ["../x"]},
        "backends: found '../x' as the name of a backend, expected up to 64 letters, digits, '-', '_' and '.', "
        "a letter or digit first",
    ),
    (
        {"backends": ["queue"]},
        "backends: 'queue' cannot name a backend because it is a key of the configuration; choose another name and say "
        "what it is with adapter: <kind>",
    ),
    (
        {"backends": ["alpa"]},
        f"backends.alpa: unknown adapter 'alpa'; did you mean 'alpha'? Installed adapters: {KINDS}. "
        "A backend with a name of its own says what it is with adapter: <kind>",
    ),
    (
        {"backends": {"main": {"adapter": "alpa"}}},
        f"backends.main.adapter: unknown adapter 'alpa'; did you mean 'alpha'? Installed adapters: {KINDS}",
    ),
    (
        {"backends": ["absent"]},
        "backends.absent: the absent adapter needs 'no_such_sdk_anywhere', which is not installed; install with: "
        'pip install "tracker-bridge[absent]"',
    ),
    (
        {"backends": {"alpha": {"mod": 1}}},
        f"backends.alpha.mod: unknown option of the alpha adapter; did you mean 'mode'? Valid options: {OPTIONS}",
    ),
    (
        {"backends": {"alpha": {"mode": "ofline"}}},
        "backends.alpha.mode: found 'ofline', expected one of online, offline; did you mean 'offline'?",
    ),
    ({"backends": {"alpha": {"port": "x"}}}, "backends.alpha.port: found 'x', expected a whole number"),
    ({"backends": {"alpha": {"port": "5"}}}, "backends.alpha.port: found '5', expected a whole number"),
    ({"backends": {"alpha": {"port": True}}}, "backends.alpha.port: found true, expected a whole number"),
    ({"backends": {"alpha": {"ratio": None}}}, "backends.alpha.ratio: found null, expected a number"),
    ({"backends": {"alpha": {"verbose": 1}}}, "backends.alpha.verbose: found 1, expected true or false"),
    ({"backends": {"alpha": {"labels": "x"}}}, "backends.alpha.labels: found 'x', expected a list of texts"),
    ({"backends": {"alpha": {"labels": ["x", {}]}}}, "backends.alpha.labels[1]: found a mapping, expected text"),
    ({"backends": {"alpha": {"settings": 3}}}, "backends.alpha.settings: found 3, expected a mapping"),
    (
        {"backends": {"alpha": {"api_key": 12345}}},
        "backends.alpha.api_key: found a value (not shown), expected text or null",
    ),
    (
        {"backends": {"alpha": {"port": "http://me:sesame@host"}}},
        "backends.alpha.port: found 'http://<secret>@host', expected a whole number",
    ),
    (
        {"backends": {"alpha": {"port": 13, "tracking_uri": "http://me:sesame@host"}}},
        "backends.alpha: port 13 is taken at http://<secret>@host",
    ),
    ({"backends": {"beta": None}}, "backends.beta.entity: the beta adapter needs this option"),
    (
        {"backends": {"alpha": {"route": {"every": 1}}}},
        "backends.alpha.route.every: unknown key; did you mean 'every_n_steps'? Keys of route: every_n_steps, exclude, "
        "group_by, include, prefix, rename",
    ),
    (
        {"backends": {"alpha": {"route": {"every_n_steps": 0}}}},
        "backends.alpha.route.every_n_steps: found 0, expected a whole number of at least 1",
    ),
    ({"backends": {"alpha": {"route": "x"}}}, "backends.alpha.route: found 'x', expected a mapping"),
    (
        {"backends": {"alpha": {"route": {"rename": {"loss": 1}}}}},
        'backends.alpha.route.rename.loss: found 1, expected text; write it in quotes: "1"',
    ),
    (
        {"backends": {"alpha": {"route": {"group_by": "blocks"}}}},
        "backends.alpha.route.group_by: found 'blocks', expected one of parameter, module, block, total or null; "
        "did you mean 'block'?",
    ),
    ({"gradients": 10}, "gradients: found 10, expected a mapping"),
    (
        {"queue": {"max_disk": 1}},
        "queue.max_disk: found 1 bytes, expected at least 64KiB (2GiB is the default)",
    ),
    (
        {"gradients": {"every": 10}},
        "gradients.every: unknown key; did you mean 'every_n_steps'? Keys of gradients: every_n_steps, exclude, "
        "group_by, include, norm_type, parts, rotate",
    ),
    (
        {"gradients": {"every_n_steps": 2.5}},
        "gradients.every_n_steps: found 2.5, expected a whole number of at least 1",
    ),
    (
        {"gradients": {"norm_type": "two"}},
        "gradients.norm_type: found 'two', expected the p of a norm: a number above 0, or inf",
    ),
    (
        {"gradients": {"parts": ["attention", "mpl"]}},
        "gradients.parts[1]: found 'mpl', expected a list of attention, mlp, embeddings, norms, head, last; "
        "did you mean 'mlp'?",
    ),
    ({"backends": [], "gradients": {"include": ["a[b"]}}, f"gradients.include: {PATTERN}"),
    (
        {"backends": [], "gradients": {"exclude": ["re:a(b"]}},
        "gradients.exclude: found 're:a(b', expected a valid regular expression after re: "
        "(missing ), unterminated subpattern at character 2 after re:)",
    ),
    (
        {"backends": [], "gradients": {"include": [""]}},
        "gradients.include: found '', expected a glob such as *.bias, or re: and a regular expression",
    ),
    (
        {"queue": {"max_disk": "2 gigs"}},
        "queue.max_disk: found '2 gigs', expected a size above 0 such as 512MiB, 2GiB or a number of bytes",
    ),
    (
        {"queue": {"max_disk": 0}},
        "queue.max_disk: found 0, expected a size above 0 such as 512MiB, 2GiB or a number of bytes",
    ),
    (
        {"queue": {"when_full": "drop_old"}},
        "queue.when_full: found 'drop_old', expected one of drop_oldest, drop_newest; did you mean 'drop_oldest'?",
    ),
    (
        {"backends": [], "delivery": {"close_timeout": "soon"}},
        "delivery.close_timeout: found 'soon', expected a number of seconds, or a duration such as 90s, 5min or 1h",
    ),
    (
        {"backends": [], "delivery": {"mode": "proces"}},
        "delivery.mode: found 'proces', expected one of process, thread; did you mean 'process'?",
    ),
    (
        {"name": "${env:NOPE}"},
        "name: the environment variable NOPE is not set; set it, or give a default with ${env:NOPE:default}",
    ),
    ({"name": "${env:}"}, "name: found '${env:}', expected ${env:NAME} or ${env:NAME:default}"),
    ({"name": "x${env:A"}, "name: found '${env:A', expected ${env:NAME} or ${env:NAME:default}"),
    (
        {"name": "${envv:NAME}"},
        "name: unknown resolver 'envv'; did you mean 'env'? There is ${env:NAME} and ${env:NAME:default}; write "
        "$${envv:...} for these characters themselves",
    ),
    (
        {"backends": {"alpha": {"settings": {"deep": ["x", "a ${ENV:TOKEN:sesame}"]}}}},
        "backends.alpha.settings.deep[1]: unknown resolver 'ENV'; did you mean 'env'? There is ${env:NAME} and "
        "${env:NAME:default}; write $${ENV:...} for these characters themselves",
    ),
    (
        {"backends": {"alpha": {"tracking_uri": "${oc.env:URI}"}}},
        "backends.alpha.tracking_uri: unknown resolver 'oc.env'; did you mean 'env'? There is ${env:NAME} and "
        "${env:NAME:default}; write $${oc.env:...} for these characters themselves",
    ),
    (
        {"queue": {"dir": "runs/${now:%Y}"}},
        "queue.dir: unknown resolver 'now'. There is ${env:NAME} and ${env:NAME:default}; write $${now:...} for these "
        "characters themselves",
    ),
    (
        {"gradients": {"include": ["${env.LAYER}"]}},
        "gradients.include[0]: found '${env.', expected ${env:NAME} or ${env:NAME:default}",
    ),
    (
        {"params": {"lr": "${evn:LR}"}},
        "params.lr: unknown resolver 'evn'; did you mean 'env'? There is ${env:NAME} and ${env:NAME:default}; write "
        "$${evn:...} for these characters themselves",
    ),
    (
        {"tags": {"who": "${en:USER}"}},
        "tags.who: unknown resolver 'en'; did you mean 'env'? There is ${env:NAME} and ${env:NAME:default}; write "
        "$${en:...} for these characters themselves",
    ),
]


@pytest.mark.parametrize(("source", "text"), CASES, ids=[text[:40] for _, text in CASES])
def test_bad_content_is_named(load: Load, source: dict[Any, Any], text: str) -> None:
    """A wrong key or value gives exactly this sentence."""
    assert message(load, source) == GIVEN + text


ENVIRONMENT: list[tuple[dict[str, str], str]] = [
    (
        {"TRACKER_BRIDGE_PROJET": "x"},
        "TRACKER_BRIDGE_PROJET: unknown environment variable; did you mean 'TRACKER_BRIDGE_PROJECT'? Known ones: "
        "TRACKER_BRIDGE_BACKENDS, TRACKER_BRIDGE_CONFIG, TRACKER_BRIDGE_DIR, TRACKER_BRIDGE_EXPERIMENT, "
        "TRACKER_BRIDGE_NAME, TRACKER_BRIDGE_PROJECT, TRACKER_BRIDGE_RANKS, TRACKER_BRIDGE_RESUME, "
        "TRACKER_BRIDGE_RUN_ID, "
        "TRACKER_BRIDGE_TAGS, "
        "TRACKER_BRIDGE_<BACKEND>__<OPTION>, TRACKER_BRIDGE_<SECTION>__<KEY>",
    ),
    ({"TRACKER_BRIDGE_QUEUE": "x"}, "TRACKER_BRIDGE_QUEUE: set one key of it, with TRACKER_BRIDGE_QUEUE__<KEY>"),
    (
        {"TRACKER_BRIDGE_QUEUE__DIRS": "x"},
        "TRACKER_BRIDGE_QUEUE__DIRS: there is no key 'dirs'; did you mean 'dir'? Keys of queue: "
        "dir, max_disk, when_full",
    ),
    (
        {"TRACKER_BRIDGE_ALPA__MODE": "x"},
        "TRACKER_BRIDGE_ALPA__MODE: there is no section and no backend 'alpa'; did you mean 'alpha'? Sections and "
        "backends: absent, alpha, beta, console, delivery, gradients, health, jsonl, memory, mlflow, neptune, queue, "
        "tensorboard, wandb",
    ),
    (
        {"TRACKER_BRIDGE_ALPHA__MOOD": "x"},
        f"TRACKER_BRIDGE_ALPHA__MOOD: there is no option 'mood'; did you mean 'mode'? Valid options: "
        f"adapter, {OPTIONS}",
    ),
    ({"TRACKER_BRIDGE_ALPHA__PORT": "x"}, "TRACKER_BRIDGE_ALPHA__PORT: found 'x', expected a whole number"),
    (
        {"TRACKER_BRIDGE_ALPHA__ROUTE__EVRY": "x"},
        "TRACKER_BRIDGE_ALPHA__ROUTE__EVRY: there is no key 'evry'. Keys of a route: every_n_steps, exclude, group_by, "
        "include, prefix, rename",
    ),
    (
        {"TRACKER_BRIDGE_QUEUE__MAX_DISK": "lots"},
        "TRACKER_BRIDGE_QUEUE__MAX_DISK: found 'lots', expected a size above 0 such as 512MiB, 2GiB "
        "or a number of bytes",
    ),
    (
        {"TRACKER_BRIDGE_BACKENDS": "alpha,betta"},
        f"TRACKER_BRIDGE_BACKENDS: backends.betta: unknown adapter 'betta'; did you mean 'beta'? Installed adapters: "
        f"{KINDS}. A backend with a name of its own says what it is with adapter: <kind>",
    ),
    ({"TRACKER_BRIDGE_RESUME": "maybe"}, "TRACKER_BRIDGE_RESUME: found 'maybe', expected true or false"),
    (
        {"TRACKER_BRIDGE_CONFIG": "missing.yaml"},
        "missing.yaml: no such file",
    ),
]


@pytest.mark.parametrize(("environ", "text"), ENVIRONMENT, ids=[next(iter(environ)) for environ, _ in ENVIRONMENT])
def test_bad_variables_are_named(load: Load, environ: dict[str, str], text: str) -> None:
    """A variable that means nothing, or holds a wrong value, gives exactly this sentence with its name."""
    source = None if "TRACKER_BRIDGE_CONFIG" in environ else {"backends": ["alpha"]}
    assert message(load, source, environ=environ) == text


FILES: list[tuple[str, str | bytes, str]] = [
    ("a.yaml", "project: [x\nname: y\n", "a.yaml:2:5: not valid YAML: expected ',' or ']', but got ':'"),
    (
        "a.yaml",
        "a: 1\na: 2\n",
        'a.yaml:2:1: not valid YAML: found duplicate key "a"',
    ),
    (
        "a.yaml",
        "a: !!python/object:os.system x\n",
        "a.yaml:1:4: not valid YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object:os.system'",
    ),
    ("a.yaml", "- alpha\n", "a.yaml: found a list as the whole document, expected a mapping of keys"),
    ("a.yaml", "bakends: 1", f"a.yaml: unknown key 'bakends'; did you mean 'backends'? {KEYS}"),
    ("a.yaml", b"project: \xff", "a.yaml: not UTF-8 text: byte 9 is 0xff"),
    ("a.toml", "project = \nname = 1", "a.toml:1:11: not valid TOML: invalid value"),
    ("a.toml", "x = [1,", "a.toml:1:8: not valid TOML: invalid value"),
    ("a.json", '{"project": }', "a.json:1:13: not valid JSON: expecting value"),
    ("pyproject.toml", "[project]", "pyproject.toml [tool.tracker_bridge]: there is no such table in the file"),
    ("a.ini", "", "a.ini: unknown kind of file; expected a name that ends in .yaml, .yml, .toml, .json"),
]


@pytest.mark.parametrize(("name", "content", "text"), FILES, ids=[text[:40] for *_, text in FILES])
def test_bad_files_are_named_with_line_and_column(
    load: Load, tmp_path: Path, name: str, content: str | bytes, text: str
) -> None:
    """A malformed file gives exactly this sentence, with the line and column where the format's reader knows them."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message(load, name) == text


def test_a_missing_file_names_the_nearest_one(load: Load, tmp_path: Path) -> None:
    """A mistyped path gets the path that was probably meant; a missing folder is said."""
    (tmp_path / "tracker.yaml").write_text("")
    assert (
        message(load, "trakcer.yaml") == f"trakcer.yaml: no such file; did you mean {str(tmp_path / 'tracker.yaml')!r}?"
    )
    assert (
        message(load, "no/tracker.yaml")
        == f"no/tracker.yaml: no such file; the folder {tmp_path / 'no'} does not exist"
    )


def test_an_unreadable_file_is_named(load: Load, tmp_path: Path) -> None:
    """A folder in the file's place, and a file without permission, give a sentence and no traceback."""
    (tmp_path / "d.yaml").mkdir()
    assert message(load, "d.yaml") == "d.yaml: the file cannot be read: is a directory"
    if os.geteuid() != 0:
        (tmp_path / "p.yaml").write_text("")
        (tmp_path / "p.yaml").chmod(0)
        assert message(load, "p.yaml") == "p.yaml: the file cannot be read: permission denied"


def test_a_source_of_a_wrong_type_is_named(load: Load) -> None:
    """Something that is no configuration at all is said."""
    assert message(load, 5) == (
        "found 5 as the configuration; expected the path of a YAML, TOML or JSON file, a mapping, a Config "
        "or a dataclass"
    )


def test_a_mandatory_omegaconf_value_is_named(load: Load) -> None:
    """OmegaConf's `???` gives the key."""
    from omegaconf import OmegaConf

    text = message(load, OmegaConf.create({"backends": {"alpha": {"mode": "???"}}}))
    assert text == "the given configuration: backends.alpha.mode: Missing mandatory value: backends.alpha.mode"


def test_a_folder_named_like_an_sdk_is_not_that_sdk(tmp_path: Path) -> None:
    """A folder `wandb` that an earlier run left in the working directory does not hide that wandb is missing."""
    (tmp_path / "no_such_sdk_anywhere").mkdir()
    code = (
        "from tests.config.adapters import AbsentAdapter; from tracker_bridge import registry;"
        "import importlib.util; assert importlib.util.find_spec('no_such_sdk_anywhere');"
        "print([need.module for need in registry.missing_requirements(AbsentAdapter)])"
    )
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(root)))}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['no_such_sdk_anywhere']"


def test_an_adapter_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """An entry point of a broken distribution gives one sentence with the distribution and the reason."""
    site = tmp_path / "site"
    info = site / "broken_tracker-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-tracker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nbroken = broken_tracker:Adapter\n")
    (site / "broken_tracker.py").write_text("import no_such_module_at_all\n")
    code = "from tracker_bridge.config import *\ntry: load_config({'backends': ['broken']})\n"
    code += "except ConfigError as e: print(e)"
    environ = {**os.environ, "PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == (
        "the given configuration: backends.broken: the adapter 'broken' ('broken_tracker:Adapter' of "
        "broken-tracker 1.0) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_at_all'"
    )
