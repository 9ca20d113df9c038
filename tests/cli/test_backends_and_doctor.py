"""`backends`, `doctor` and the program itself."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import MakeRun, Program, plain_environment
from tracker_bridge import __version__
from tracker_bridge.adapter import CONTRACT_VERSION

KINDS = ["console", "jsonl", "memory", "mlflow", "neptune", "tensorboard", "wandb"]

FOREIGN = """
from tracker_bridge.adapter import Adapter, Capabilities, Options, Requirement
class ForeignOptions(Options, frozen=True, kw_only=True):
    base_url: str
    api_key: str = ""
class Foreign(Adapter):
    "Speaks to a tracker that nobody has."
    options_type = ForeignOptions
    capabilities = Capabilities()
    requires = (Requirement("no_such_sdk_anywhere", "tracker-bridge[foreign]"),)
    def open(self, run): ...
    def write(self, batch): ...
    def close(self, status): ...
class Present(Foreign):
    requires = ()
    def server(self):
        return self.options.base_url
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for `PYTHONPATH` with a distribution of three adapters: absent SDK, present, and one that is broken."""
    site = tmp_path / "site"
    info = site / "foreign_tracker-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-tracker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tracker_bridge.adapters]\n"
        "foreign = foreign_tracker:Foreign\npresent = foreign_tracker:Present\nbroken = foreign_tracker:Nothing\n"
    )
    (site / "foreign_tracker.py").write_text(FOREIGN)
    return site


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a real HTTP server that answers 404 to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def test_backends_lists_every_adapter_with_its_sdk(program: Program) -> None:
    """All built-in adapters load, with the version of their SDK, their options and their capabilities."""
    done = program("backends", "--json")
    adapters = {entry["kind"]: entry for entry in done.json["adapters"]}
    assert (done.code, list(adapters)) == (0, KINDS)
    assert {kind: entry["error"] for kind, entry in adapters.items() if entry["error"]} == {}
    assert adapters["tensorboard"]["requires"][0]["module"] == "tensorboard"
    assert adapters["tensorboard"]["requires"][0]["version"][0].isdigit()
    assert adapters["jsonl"]["capabilities"]["non_finite"] == "native"
    assert adapters["jsonl"]["options"] == [
        {"name": "path", "type": "text", "required": False, "default": "{run_id}.jsonl"}
    ]
    assert done.json["contract_version"] == CONTRACT_VERSION
    table = program("backends").out
    assert [kind for kind in KINDS if kind not in table] == []


def test_backends_says_what_installs_a_missing_sdk(program: Program, site: Path) -> None:
    """A missing SDK comes with the exact command; a broken adapter is an error of its own and exit status 1."""
    done = program("backends", PYTHONPATH=str(site))
    assert done.code == 1
    assert 'missing: pip install "tracker-bridge[foreign]"' in done.out
    assert "has no attribute 'Nothing'" in " ".join(done.out.split())
    one = program("backends", "foreign", PYTHONPATH=str(site))
    assert one.code == 0
    assert "foreign-tracker 1.0" in one.out
    assert "Speaks to a tracker that nobody has." in one.out
    assert "base_url" in one.out


def test_an_unknown_adapter_names_the_nearest_one(program: Program) -> None:
    """A mistyped adapter is a usage error."""
    done = program("backends", "tensorbord")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: unknown adapter 'tensorbord'; did you mean 'tensorboard'? Installed adapters: ")


def test_doctor_is_content_with_a_good_machine(program: Program, tmp_path: Path) -> None:
    """Versions, configuration and where it is from, backends, folder and space are reported, and nothing is left."""
    (tmp_path / "tracker_bridge.yaml").write_text("backends: [jsonl]\nqueue: {max_disk: 1MiB}")
    done = program("doctor", "--json", TRACKER_BRIDGE_PROJECT="p")
    findings = [(entry["about"], entry["verdict"]) for entry in done.json["findings"]]
    assert done.code == 0
    assert findings == [
        (about, "ok")
        for about in (
            "tracker_bridge",
            "python",
            "torch",
            "numpy",
            "msgspec",
            "modules in C",
            "configuration",
            "environment",
            "backend jsonl",
            "queue",
            "queue",
        )
    ]
    texts = {entry["about"]: entry["text"] for entry in done.json["findings"]}
    assert texts["configuration"] == "tracker_bridge.yaml; backends: jsonl"
    assert texts["environment"] == "TRACKER_BRIDGE_PROJECT"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tracker_bridge.yaml"]
    assert program("doctor").out.endswith("All is well.\n")


def test_doctor_reaches_a_server_and_shows_no_secret(program: Program, site: Path, server: str, tmp_path: Path) -> None:
    """Any HTTP answer counts as reachable; the address is shown without the credentials in it."""
    url = f"http://user:sesame-1@{server}/path?token=sesame-2"
    options = {"base_url": url, "api_key": "sesame-3"}
    (tmp_path / "c.json").write_text(json.dumps({"backends": {"present": options}}))
    for flags in ((), ("--json",)):
        done = program("doctor", "--config", "c.json", *flags, PYTHONPATH=str(site), SOME_API_KEY="sesame-4-sesame")
        assert done.code == 0, done.out
        assert f"http://{server}/path answers (HTTP 404)" in done.out
        assert "sesame" not in done.out + done.err


def test_doctor_names_a_server_that_does_not_answer(program: Program, site: Path, tmp_path: Path) -> None:
    """A closed port, and a port that accepts and stays silent, are problems within the time-out."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = silent.getsockname()[1], closed.getsockname()[1]
        closed.close()
        backends = {
            "silent": {"adapter": "present", "base_url": f"http://127.0.0.1:{ports[0]}"},
            "closed": {"adapter": "present", "base_url": f"http://127.0.0.1:{ports[1]}"},
        }
        (tmp_path / "c.json").write_text(json.dumps({"backends": backends}))
        done = program("doctor", "--config", "c.json", "--json", PYTHONPATH=str(site))
    assert done.code == 1
    texts = [entry["text"] for entry in done.json["findings"] if entry["verdict"] == "problem"]
    assert texts == [
        f"http://127.0.0.1:{ports[0]} cannot be reached: no answer within 3 s",
        f"http://127.0.0.1:{ports[1]} cannot be reached: connection refused",
    ]


def test_doctor_reports_a_bad_configuration_and_goes_on(program: Program, tmp_path: Path) -> None:
    """A configuration error is one problem among the findings; the folder is still examined."""
    (tmp_path / "tracker_bridge.yaml").write_text("backends: {jsonl: {pth: x}}\nqueue: {dir: /proc/no/such}")
    done = program("doctor", "--json")
    problems = {entry["about"]: entry["text"] for entry in done.json["findings"] if entry["verdict"] == "problem"}
    assert done.code == 1
    assert problems["configuration"] == (
        "tracker_bridge.yaml: backends.jsonl.pth: unknown option of the jsonl adapter; did you mean 'path'? "
        "Valid options: path"
    )
    assert problems["queue"].startswith("/proc/no/such cannot be written: ")


def test_doctor_mentions_undelivered_runs(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """What waits for delivery is a warning with the command that delivers it."""
    (tmp_path / "tracker_bridge.yaml").write_text("backends: [jsonl]\nqueue: {max_disk: 1MiB}")
    make_run("one", {"jsonl": {}})
    done = program("doctor", "--json")
    warnings = [entry for entry in done.json["findings"] if entry["verdict"] == "warning"]
    assert (done.code, [entry["text"] for entry in warnings]) == (0, ["1 run of 1 not wholly delivered"])
    assert warnings[0]["remedy"] == "tracker-bridge sync"


def test_a_bad_configuration_is_a_usage_error(program: Program, tmp_path: Path) -> None:
    """A command that needs the configuration prints the one sentence, no traceback, and exits with 2."""
    (tmp_path / "tracker_bridge.yaml").write_text("queue: {dri: x}")
    done = program("status")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: tracker_bridge.yaml: queue.dri: unknown key; did you mean 'dir'? Keys of queue: "
        "dir, max_disk, when_full\n"
    )


def test_version_help_and_usage(program: Program) -> None:
    """`--version` and `--help` succeed; an unknown command or option, or none at all, is usage."""
    assert (program("--version").code, program("--version").out) == (0, f"tracker-bridge {__version__}\n")
    assert program("-h").code == 0
    assert program().code == 2
    assert program("stauts").code == 2
    assert program("status", "--jsn").code == 2


def test_the_installed_command_is_the_same_program(tmp_path: Path) -> None:
    """The console script runs the same program as `python -m tracker_bridge`."""
    script = Path(sys.executable).with_name("tracker-bridge")
    if not script.exists():
        pytest.skip("not installed as a distribution with scripts")
    done = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"tracker-bridge {__version__}\n"


@pytest.mark.parametrize("command", [["--version"], ["status"], ["sync"], ["backends"], ["doctor"]])
def test_no_command_imports_torch_or_an_sdk(tmp_path: Path, command: list[str]) -> None:
    """Each command, run to its end, has imported neither torch nor a tracker."""
    (tmp_path / "tracker_bridge.toml").write_text('backends = ["tensorboard", "mlflow", "wandb", "neptune"]')
    code = (
        "import sys\nfrom tracker_bridge.cli import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'tensorboard', 'wandb', 'mlflow', 'neptune_scale', 'omegaconf', 'ruamel.yaml')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    environ = plain_environment(PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_traceback(make_run: MakeRun, tmp_path: Path) -> None:
    """`tracker-bridge status | head` ends quietly."""
    make_run("one", {"jsonl": {}})
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "tracker_bridge", "status", "--json"],
        cwd=tmp_path,
        env=plain_environment(),
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert "Traceback" not in done.stderr
