"""The launcher leaves everything to Python: a launched script cannot tell, but by what a tracker's name means."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import scripts
from tracker_bridge.rundir import find_runs, load_manifest

LAUNCH = ["-m", "tracker_bridge.launch"]
FACTS = """
import json, os, sys
facts = {
    "argv": sys.argv, "name": __name__, "file": globals().get("__file__"), "path": sys.path, "flags": repr(sys.flags),
    "orig": sys.orig_argv, "spec": repr(__spec__)[:30], "stdin": None if sys.argv[0] == "-" else sys.stdin.read(),
    "environ": {k: v for k, v in os.environ.items() if k not in ("_", "SHLVL")},
    "main": sys.modules["__main__"].__dict__ is globals(), "hook": sys.excepthook is sys.__excepthook__,
    "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "heavy": sorted({"torch", "numpy", "typer", "rich", "msgspec", "subprocess", "random"} & set(sys.modules)),
}
print(json.dumps(facts, sort_keys=True))
"""


def python(
    folder: Path, *arguments: str, stdin: str = "", timeout: float = 90, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`; runs go to a `jsonl` file each."""
    environment = scripts.environment(**{"TRACKER_BRIDGE_BACKENDS": "jsonl", **more})
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ([], ["script.py", "--lr", "0.1", "-c", "--config", "x"]),
        (["-u", "-W", "ignore", "-X", "dev", "-O"], ["script.py"]),
        ([], ["-m", "script", "one"]),
        ([], ["-c", FACTS, "one", "two"]),
        ([], ["-", "one"]),
        ([], ["sub/script.py"]),
    ],
    ids=["file", "flags", "module", "code", "stdin", "folder"],
)
def test_a_script_sees_what_python_alone_shows_it(tmp_path: Path, flags: list[str], target: list[str]) -> None:
    """argv, `__main__`, path, environment, flags, streams and loaded modules are the same with and without."""
    (tmp_path / "sub").mkdir()
    for script in (tmp_path / "script.py", tmp_path / "sub" / "script.py"):
        script.write_text(FACTS)
    stdin = FACTS if target[0] == "-" else "typed\nlines\n"
    alone = python(tmp_path, *flags, *target, stdin=stdin)
    launched = python(tmp_path, *flags, *LAUNCH, *target, stdin=stdin)
    assert alone.returncode == launched.returncode == 0, launched.stderr
    assert launched.stdout == alone.stdout
    assert launched.stderr == alone.stderr


@pytest.mark.parametrize(
    "ending",
    [
        "1 / 0",
        "sys.exit(3)",
        "sys.exit('a reason')",
        "sys.exit()",
        "os._exit(5)",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(30)",
        "def f():\n    raise ValueError('x') from KeyError('y')\nf()",
        "sys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    ],
)
def test_every_kind_of_end_is_the_same(tmp_path: Path, ending: str) -> None:
    """Exit status, signal and traceback, to the letter."""
    (tmp_path / "script.py").write_text(f"import os, signal, sys, time\nprint('begin', flush=True)\n{ending}\n")
    alone = python(tmp_path, "script.py")
    launched = python(tmp_path, *LAUNCH, "script.py")
    assert (launched.returncode, launched.stdout, launched.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_a_crash_with_a_run_is_failed_and_keeps_its_traceback(tmp_path: Path) -> None:
    """The exception of a launched script is the last thing but the report, and its run has failed."""
    (tmp_path / "script.py").write_text("import wandb\nwandb.init().log({'a': 1})\nraise RuntimeError('boom')\n")
    done = python(tmp_path, *LAUNCH, "script.py")
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: boom") == 1
    assert 'File "' + str(tmp_path / "script.py") in done.stderr
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    assert load_manifest(run).status == "failed"


def test_names_mean_stand_ins_however_they_are_imported(tmp_path: Path) -> None:
    """Submodules, in any order; the environment's own `sitecustomize` runs too; what has no stand-in says so."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys, wandb\nsys.customized = wandb.__name__\n")
    (tmp_path / "script.py").write_text(
        """
import sys, importlib, importlib.util
import wandb.errors, wandb, mlflow.pytorch, neptune_scale.api.run, tensorboardX
from wandb.sdk.wandb_run import Run
from mlflow.tracking import MlflowClient
print(sys.customized, Run is wandb.Run, mlflow.pytorch.autolog.__name__, MlflowClient.__module__)
print(importlib.import_module("neptune_scale") is neptune_scale, tensorboardX.SummaryWriter.__name__)
print(importlib.util.find_spec("wandb") is not None)
for name in ("wandb.integration.keras", "neptune_scale.sync.supervisor", "mlflow.store", "wandb._run"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(type(error).__name__, "stand-in" in str(error), error.name.partition(".")[0])
"""
    )
    path = os.pathsep.join([str(tmp_path / "site"), str(scripts.REPOSITORY)])
    done = python(tmp_path, *LAUNCH, "script.py", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tracker_bridge.compat.wandb True autolog tracker_bridge.compat.mlflow._client",
        "True SummaryWriter",
        "True",
        "ModuleNotFoundError True wandb",
        "ModuleNotFoundError True neptune_scale",
        "ModuleNotFoundError True mlflow",
        "ModuleNotFoundError True wandb",
    ]


def test_what_was_imported_before_the_aliases_is_not_met_again(tmp_path: Path) -> None:
    """A package that some start-up file has imported already is replaced for every later import."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("from wandb import inner\n")
    (tmp_path / "wandb" / "inner.py").write_text("")
    code = """
import sys, wandb.inner
print(wandb.inner.__name__)
from tracker_bridge.launch._aliases import install
install(["wandb"])
import wandb
print(wandb.__name__, "wandb.inner" in sys.modules)
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout.splitlines() == ["wandb.inner", "tracker_bridge.compat.wandb False"], done.stderr


def test_only_this_process_is_aliased_and_what_it_spawns_with_multiprocessing(tmp_path: Path) -> None:
    """A spawned or forked worker, which imports the script again, sees the stand-in; another program does not."""
    (tmp_path / "script.py").write_text(
        """
import multiprocessing, subprocess, sys
import neptune_scale

def worker(queue):
    queue.put(neptune_scale.__name__)

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=worker, args=(queue,))
        process.start()
        print(method, queue.get(timeout=60), process.name)
        process.join()
    code = "import sys; print(any('AliasFinder' in type(finder).__name__ for finder in sys.meta_path))"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
"""
    )
    done = python(tmp_path, *LAUNCH, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "spawn tracker_bridge.compat.neptune_scale SpawnProcess-1",
        "forkserver tracker_bridge.compat.neptune_scale ForkServerProcess-2",
        "fork tracker_bridge.compat.neptune_scale ForkProcess-3",
        "False",
    ]


def test_only_leaves_the_others_real(tmp_path: Path) -> None:
    """`--only wandb` does not touch mlflow."""
    code = "import wandb, importlib.util; print(wandb.__name__, 'compat' in importlib.util.find_spec('mlflow').origin)"
    done = python(tmp_path, *LAUNCH, "--only", "wandb", "-c", code)
    assert done.stdout.split() == ["tracker_bridge.compat.wandb", "False"], done.stderr


def test_nothing_starts_with_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    """A wrong key is told before the script's first line; so is a missing script's name, and an unknown tracker."""
    (tmp_path / "tracker.yaml").write_text("backends: {jsonl: {pth: x}}\n")
    (tmp_path / "script.py").write_text("print('started')\n")
    done = python(tmp_path, *LAUNCH, "--config", "tracker.yaml", "script.py")
    assert done.returncode == 2
    assert "started" not in done.stdout
    assert "path" in done.stderr
    assert "name a script" in python(tmp_path, *LAUNCH).stderr
    assert "neptune_scale" in python(tmp_path, *LAUNCH, "--only", "comet", "script.py").stderr
    assert "without -E" in python(tmp_path, "-E", *LAUNCH, "script.py").stderr


def test_config_holds_also_for_a_script_that_changes_its_folder(tmp_path: Path) -> None:
    """`--config` is meant from where the command was given; thread delivery, which would need the SDK, is refused."""
    (tmp_path / "tracker.yaml").write_text(
        "project: from-file\nqueue: {dir: queue}\ndelivery: {mode: thread}\nbackends: {jsonl: {path: out.jsonl}}\n"
    )
    (tmp_path / "work").mkdir()
    code = (
        "import os; os.chdir('work'); from neptune_scale import Run\nwith Run() as r: r.log_metrics({'a': 1.0}, step=3)"
    )
    done = python(tmp_path, *LAUNCH, "--config", "tracker.yaml", "-c", code, TRACKER_BRIDGE_BACKENDS="")
    assert done.returncode == 0, done.stderr
    assert scripts.metrics(tmp_path / "work" / "out.jsonl", "a") == [(3, 1.0)]
    assert "delivery.mode: thread is not possible" in done.stderr


def test_the_command_takes_nothing_that_is_the_scripts(tmp_path: Path) -> None:
    """`tracker-bridge run --config C script.py --config x -m y`: what follows the script's name is the script's."""
    (tmp_path / "script.py").write_text("import sys; print(sys.argv)\n")
    (tmp_path / "tracker.yaml").write_text("backends: [jsonl]\n")
    code = (
        "import typer; from tracker_bridge.cli._run import SETTINGS, run; app = typer.Typer();"
        "app.command('other')(lambda: None); app.command('run', context_settings=SETTINGS)(run); app()"
    )
    target = ["script.py", "--config", "x", "-m", "y", "--help", "--", "-c"]
    done = python(tmp_path, "-c", code, "run", "--config", "tracker.yaml", "--only", "wandb", *target)
    assert done.stdout.strip() == repr(target), done.stderr
    done = python(tmp_path, "-c", code, "run", "-m", "script", "--lr", "1")
    assert done.stdout.strip() == repr([str(tmp_path / "script.py"), "--lr", "1"]), done.stderr


def test_interrupting_the_launched_process_reaches_the_script(tmp_path: Path) -> None:
    """Ctrl-C sent to the command's own process id is the script's KeyboardInterrupt; its run was killed."""
    code = (
        "import sys, time, wandb\nrun = wandb.init()\nrun.log({'a': 1})\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, *LAUNCH, "script.py"],
        cwd=tmp_path,
        env=scripts.environment(TRACKER_BRIDGE_BACKENDS="jsonl"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.count("KeyboardInterrupt") == 1
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    assert load_manifest(run).status == "killed"
