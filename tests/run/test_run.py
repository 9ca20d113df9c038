"""`init` and `Run` in real scripts: what arrives, what happens at every kind of end, several runs, forks."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import scripts
from tests.waiting import until
from tracker_bridge.rundir import RunPaths, find_runs, load_manifest, load_state

HEAD = """
import os, signal, sys, threading, time
import tracker_bridge as bridge
BACKEND = {"jsonl": {"path": "{run_id}.jsonl"}}
"""


def only_run(folder: Path) -> RunPaths:
    (paths,) = find_runs(folder / "tracker_bridge_runs")
    return paths


def output(folder: Path) -> Path:
    return folder / f"{only_run(folder).root.name}.jsonl"


def test_import_is_light() -> None:
    """`import tracker_bridge` imports neither torch, numpy nor any SDK."""
    code = "import sys, tracker_bridge; print(sorted({'torch','numpy','wandb','mlflow','neptune_scale','tensorboard',"
    code += "'msgspec','rich','typer'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_values_steps_params_tags_and_status_arrive(tmp_path: Path) -> None:
    """A script in process mode, read back from what the backend stored."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
with bridge.init(backends=BACKEND, run_id="r1", project="nlp/bert", name="first", tags="a", params={"lr": 0.1}) as run:
    for step in range(100):
        run.log_metrics({"loss": 1.0 / (step + 1)}, step=step)
    run.log_metrics({"next": 1})
    run.add_tags({"k": "v"})
    run.remove_tags("a")
    run.log_params({"opt": {"name": "adam"}})
    run.log_text("note", "hello", step=3)
print(run.close().complete, run.close()["jsonl"].sent, run.close().command)
""",
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "109", "None"]
    path = tmp_path / "r1.jsonl"
    assert scripts.metrics(path, "loss") == [(step, 1.0 / (step + 1)) for step in range(100)]
    assert scripts.metrics(path, "next") == [(100, 1.0)]
    found = scripts.lines(path)
    assert [line["params"] for line in found if "params" in line] == [{"lr": 0.1}, {"opt": {"name": "adam"}}]
    assert [line["tags"] for line in found if "tags" in line][-1] == {"k": "v"}
    assert scripts.statuses(path) == ["finished"]
    assert load_manifest(only_run(tmp_path)).status == "finished"


@pytest.mark.parametrize(
    ("ending", "status", "code"),
    [
        ("", "finished", 0),
        ("run.close()", "finished", 0),
        ("sys.exit(0)", "finished", 0),
        ("raise RuntimeError('boom')", "failed", 1),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", "killed", -2),
    ],
)
def test_end_without_close_delivers_everything_with_the_right_status(
    tmp_path: Path, ending: str, status: str, code: int
) -> None:
    """A script that just ends, raises, or is interrupted loses nothing, and its own exit status is unchanged."""
    done = scripts.run(
        tmp_path, HEAD + f"run = bridge.init(backends=BACKEND)\nrun.log_metrics({{'loss': 1.0}}, step=5)\n{ending}\n"
    )
    assert done.returncode == code
    assert scripts.metrics(output(tmp_path), "loss") == [(5, 1.0)]
    assert scripts.statuses(output(tmp_path)) == [status]
    assert load_manifest(only_run(tmp_path)).status == status
    if status == "failed":
        assert done.stderr.count("RuntimeError: boom") == 1


@pytest.mark.parametrize(
    ("error", "status"), [("ValueError('x')", "failed"), ("KeyboardInterrupt()", "killed"), ("SystemExit(3)", "failed")]
)
def test_context_manager_reports_and_raises_again(tmp_path: Path, error: str, status: str) -> None:
    """An exception ends the run as failed, Ctrl-C as killed; both go on their way."""
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
try:
    with bridge.init(backends=BACKEND) as run:
        run.log_metrics({{"loss": 1.0}})
        raise {error}
except BaseException as caught:
    print(type(caught).__name__)
""",
    )
    assert done.stdout.strip() == error.partition("(")[0]
    assert scripts.statuses(output(tmp_path)) == [status]


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
        ("os._exit(0)", "crashed"),
        ("signal.raise_signal(signal.SIGTERM)", "killed"),
    ],
)
def test_a_vanished_script_is_delivered_and_its_run_is_ended(tmp_path: Path, how: str, status: str) -> None:
    """SIGKILL, os._exit and SIGTERM right after a call returned: the record arrives, nobody stays behind."""
    scripts.run(
        tmp_path, HEAD + f"run = bridge.init(backends=BACKEND)\nrun.log_metrics({{'loss': 1.0}}, step=7)\n{how}\n"
    )
    paths = only_run(tmp_path)
    until(lambda: load_state(paths, "jsonl").health == "closed", what="the delivery process finishes the run")
    assert scripts.metrics(output(tmp_path), "loss") == [(7, 1.0)]
    assert scripts.statuses(output(tmp_path)) == [status]
    assert load_manifest(paths).status == status
    until(lambda: not scripts.processes_of(tmp_path), what="no process is left")


def test_sweeps_one_after_another_and_two_at_once_stay_apart(tmp_path: Path) -> None:
    """Several runs in one process, in sequence and at the same time, do not mix."""
    scripts.run(
        tmp_path,
        HEAD
        + """
for number in range(3):
    with bridge.init(backends=BACKEND, run_id=f"seq{number}") as run:
        run.log_metrics({"x": number})
a = bridge.init(backends=BACKEND, run_id="a")
b = bridge.init(backends=BACKEND, run_id="b")
assert bridge.current() is b
for step in range(10):
    a.log_metrics({"x": 1.0}, step=step)
    b.log_metrics({"x": 2.0}, step=step)
b.close()
assert bridge.current() is a
""",
    )
    for number in range(3):
        assert scripts.metrics(tmp_path / f"seq{number}.jsonl", "x") == [(0, float(number))]
    assert scripts.metrics(tmp_path / "a.jsonl", "x") == [(step, 1.0) for step in range(10)]
    assert scripts.metrics(tmp_path / "b.jsonl", "x") == [(step, 2.0) for step in range(10)]


def test_without_main_guard_on_stdin_and_with_c(tmp_path: Path) -> None:
    """Delivery needs no main guard and no file: scripts on standard input and `-c` work."""
    code = HEAD + "run = bridge.init(backends=BACKEND, run_id=sys.argv[1])\nrun.log_metrics({'loss': 1.0}, step=1)\n"
    for name, command in (("stdin", ["-", "stdin"]), ("c", ["-c", code, "c"])):
        text = code if name == "stdin" else None
        subprocess.run(
            [sys.executable, *command], input=text, cwd=tmp_path, env=scripts.environment(), text=True, check=True
        )
        assert scripts.metrics(tmp_path / f"{name}.jsonl", "loss") == [(1, 1.0)]


def test_forked_children_do_not_append_and_do_not_end_the_run(tmp_path: Path) -> None:
    """A forked worker that logs, exits or raises leaves the parent's run alone."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
run.log_metrics({"x": 0.0}, step=0)
for ending in ("os._exit(0)", "sys.exit(0)", "raise ValueError"):
    pid = os.fork()
    if pid == 0:
        sys.stderr = open(os.devnull, "w")
        run.log_metrics({"x": 99.0}, step=99)
        run.close()
        exec(ending)
    os.waitpid(pid, 0)
run.log_metrics({"x": 1.0}, step=1)
""",
    )
    assert done.returncode == 0, done.stderr
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 0.0), (1, 1.0)]
    assert scripts.statuses(tmp_path / "r.jsonl") == ["finished"]


def test_threads_get_distinct_steps_and_lose_nothing(tmp_path: Path) -> None:
    """Eight threads without steps: 800 values at 800 different steps."""
    scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
def work():
    for _ in range(100):
        run.log_metrics({"x": 1.0})
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
""",
    )
    steps = [step for step, _ in scripts.metrics(tmp_path / "r.jsonl", "x")]
    assert sorted(steps) == list(range(800))


def test_a_mapping_that_changes_while_it_is_logged_is_logged_as_it_was(tmp_path: Path) -> None:
    """Another thread may fill the script's own mapping meanwhile; reading that one on raised `RuntimeError`."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
shared = {}
class Value:
    def __float__(self):
        shared["later"] = 3.0
        return 2.0
shared.update(loss=1.0, acc=Value())
with bridge.init(backends=BACKEND) as run:
    run.log_metrics(shared, step=0)
""",
    )
    assert done.stderr == ""
    stored = output(tmp_path).read_text()
    assert '"acc":2.0' in stored.replace(" ", "")
    assert "later" not in stored


def test_resume_continues_the_run(tmp_path: Path) -> None:
    """A re-queued job with the same id goes on: same tracker run, steps continue, one run directory."""
    text = (
        HEAD
        + "run = bridge.init(backends=BACKEND, run_id='r')\nrun.log_metrics({'x': 1.0})\nrun.log_metrics({'x': 2.0})\n"
    )
    scripts.run(tmp_path, text + "os.kill(os.getpid(), signal.SIGKILL)\n")
    done = scripts.run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    paths = only_run(tmp_path)
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 1.0), (1, 2.0), (2, 1.0), (3, 2.0)]
    assert load_manifest(paths).attempt == 2
    assert load_manifest(paths).status == "finished"
    refused = scripts.run(tmp_path, text)
    assert refused.returncode == 1
    assert "run 'r'" in refused.stderr
    assert "pass resume=True to continue it" in refused.stderr
    scripts.run(tmp_path, text.replace("run_id='r'", "run_id='r', resume=True"))
    assert [step for step, _ in scripts.metrics(tmp_path / "r.jsonl", "x")] == list(range(6))


def test_a_run_that_is_open_in_the_same_process_is_to_be_closed(tmp_path: Path) -> None:
    """A notebook's cell that is run twice: the error names the remedy, which works (naive: "by another process")."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
earlier = bridge.init(backends=BACKEND, run_id="r")
earlier.log_metrics({"x": 1.0})
for resume in (False, True):
    try:
        bridge.init(backends=BACKEND, run_id="r", resume=resume)
    except bridge.UsageError as error:
        print(error)
bridge.current().close()
with bridge.init(backends=BACKEND, run_id="r", resume=True) as run:
    run.log_metrics({"x": 2.0})
""",
    )
    assert done.returncode == 0, done.stderr
    place = tmp_path / "tracker_bridge_runs"
    text = (
        f"run 'r' in {place} is still open in this process; end it with its close() (tracker_bridge.current().close()"
    )
    assert [line.startswith(text) for line in done.stdout.splitlines()] == [True, True], done.stdout
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 1.0), (1, 2.0)]


def test_resume_without_an_id_is_refused(tmp_path: Path) -> None:
    """`resume` says nothing without the id of a run: an error that names the key and the remedy, and no new run."""
    call = "bridge.init(backends=BACKEND, resume=True)\n"
    (tmp_path / "tracker_bridge.yaml").write_text("resume: true\nbackends: [jsonl]")
    for text in (call, "bridge.init()\n"):
        done = scripts.run(tmp_path, HEAD + text)
        assert done.returncode == 1
        assert "ConfigError: resume: true needs the run_id of the run to go on with" in done.stderr
        assert "TRACKER_BRIDGE_RUN_ID" in done.stderr
    assert not (tmp_path / "tracker_bridge_runs").exists()
    done = scripts.run(tmp_path, HEAD + "bridge.init().close()\n", TRACKER_BRIDGE_RUN_ID="job-7")
    assert done.returncode == 0, done.stderr
    assert only_run(tmp_path).root.name == "job-7"


def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    """Two processes must not append to one journal."""
    with scripts.start(
        tmp_path, HEAD + "run = bridge.init(backends='none', run_id='r')\nprint('up', flush=True)\ntime.sleep(60)\n"
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        second = scripts.run(tmp_path, HEAD + "bridge.init(backends='none', run_id='r')\n")
        first.send_signal(signal.SIGKILL)
    assert second.returncode == 1
    assert "is still being written by process" in second.stderr


def test_a_place_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    """A queue directory that cannot be made is told once, and the run goes elsewhere."""
    (tmp_path / "file").write_text("")
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    done = scripts.run(
        tmp_path,
        HEAD + "run = bridge.init(backends=BACKEND, run_id='r', dir='file/queue')\nrun.log_metrics({'x': 1.0})\n",
        TMPDIR=str(elsewhere),
    )
    assert done.returncode == 0, done.stderr
    assert "no run directory can be made in" in done.stderr
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 1.0)]


def test_a_run_that_is_kept_elsewhere_says_where_and_how_to_deliver_it(tmp_path: Path) -> None:
    """The temporary folder of a run is in the message and in `run.dir`, and the command that is named delivers it."""
    (tmp_path / "file").write_text("")
    elsewhere = tmp_path / "tmp folder"
    elsewhere.mkdir()
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id='r', dir='file/queue')
run.log_metrics({'x': 1.0})
print(run.dir, flush=True)
os.kill(run._channel._process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""",
        TMPDIR=str(elsewhere),
    )
    root = elsewhere / f"tracker_bridge_runs-{os.getuid()}" / "r"
    assert done.stdout.strip() == str(root)
    (told,) = [line for line in done.stderr.splitlines() if "is kept in" in line]
    assert f"run 'r' is kept in {root} instead" in told
    command = told.partition("deliver what stays there with: ")[2]
    assert shlex.split(command) == ["tracker-bridge", "sync", str(root)]
    synced = subprocess.run(
        [sys.executable, "-m", "tracker_bridge", *shlex.split(command)[1:]],
        cwd=tmp_path / "tmp folder",
        env=scripts.environment(),
        capture_output=True,
        text=True,
    )
    assert synced.returncode == 0, synced.stdout + synced.stderr
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 1.0)]


def test_a_dead_delivery_process_is_started_again(tmp_path: Path) -> None:
    """SIGKILL to the delivery process during the run loses nothing and is mended by itself."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
run.log_metrics({"x": 0.0}, step=0)
assert run.flush(20)
os.kill(run._channel._process.pid, signal.SIGKILL)
run._channel._process._process.wait()
deadline = time.monotonic() + 20
step = 1
while run._channel._restarts == 0 and time.monotonic() < deadline:
    run.log_metrics({"x": 1.0}, step=step); step += 1; time.sleep(0.05)
print(step)
""",
    )
    steps = int(done.stdout)
    assert [step for step, _ in scripts.metrics(tmp_path / "r.jsonl", "x")] == list(range(steps))
    assert scripts.statuses(tmp_path / "r.jsonl") == ["finished"]


def test_other_ranks_have_the_same_methods_and_write_nothing(tmp_path: Path) -> None:
    """Rank 1 of torchrun holds a run that accepts everything and leaves no trace."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND)
run.log_metrics({"x": 1.0}); run.log_params({"a": 1}); run.add_tags("t"); run.log_text("a", "b")
run.log_artifact(__file__); run.flush(); print(run.urls, run.dir, dict(run.close()))
""",
        RANK="1",
        WORLD_SIZE="2",
    )
    assert done.stdout.strip() == "{} None {}"
    assert not (tmp_path / "tracker_bridge_runs").exists()


def test_misuse_raises_and_logs_nothing(tmp_path: Path) -> None:
    """A wrong key or value is a clear error that names it; the run goes on."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
for call in (
    lambda: run.log_metrics([1]), lambda: run.log_metrics({1: 2.0}), lambda: run.log_metrics({"a": "x"}),
    lambda: run.log_metrics({"a": 1.0}, step="x"), lambda: run.log_params(3), lambda: run.add_tags(3),
    lambda: run.log_artifact("missing"), lambda: run.close("done"),
    lambda: run.log_histogram("h", [1, 2], [0, 1]),
):
    try:
        call()
        print("no error")
    except (TypeError, ValueError) as error:
        print(error)
run.log_metrics({"ok": 1.0}, step=0)
""",
    )
    printed = done.stdout.splitlines()
    assert "no error" not in printed
    assert len(printed) == 9
    assert "names must be text, not int (1)" in printed[1]
    assert "metric 'a' must be a number" in printed[2]
    assert scripts.metrics(tmp_path / "r.jsonl", "ok") == [(0, 1.0)]


def test_no_param_ends_the_script(tmp_path: Path) -> None:
    """A class, a module or a number without end is kept as text (naive: TypeError and ValueError out of `init`)."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import numpy as np
class Odd(dict):
    def items(self):
        raise RuntimeError("items")
params = {"dtype": np.float32, "n": 10**5000, "module": np, "odd": Odd(a=1)}
run = bridge.init(backends=BACKEND, run_id="r", params=params)
run.log_params({"again": params})
""",
    )
    assert done.returncode == 0, done.stderr
    found = [line["params"] for line in scripts.lines(tmp_path / "r.jsonl") if "params" in line]
    expected = {"dtype": "numpy.float32", "n": hex(10**5000), "module": "numpy", "odd": {"a": 1}}
    assert {**found[0], **found[-1]} == {**expected, "again": expected}


def test_the_step_after_the_last_one_is_the_last_one(tmp_path: Path) -> None:
    """No step that is counted leaves int64 (naive: 2**63, which SQLite refuses for ever); it is told once."""
    text = """
run = bridge.init(backends=BACKEND, run_id="r", resume=len(sys.argv) > 1)
if len(sys.argv) == 1:
    run.log_metrics({"x": 0.0}, step=2**63 - 2)
for value in range(3):
    run.log_metrics({"x": 1.0})
run.log_histogram("h", [1], [0, 1])
run.log_metrics({"x": 2.0}, step=5)
run.log_metrics({"x": 3.0})
if len(sys.argv) == 1:
    run.log_metrics({"x": 4.0}, step=2**63 - 1)
"""
    first = scripts.run(tmp_path, HEAD + text)
    again = scripts.run(tmp_path, HEAD + text, "again")
    last = 2**63 - 1
    steps = [step for step, _ in scripts.metrics(tmp_path / "r.jsonl", "x")]
    assert steps == [last - 1, last, last, last, 5, 6, last, last, last, last, 5, 6]
    for done in (first, again):
        assert done.stderr.count("there is no step after 9223372036854775807") == 1, done.stderr


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """A record that no encoder takes is in the table, in `not_written` and in `run.json` (naive: all is delivered)."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from tracker_bridge.records import Metrics
run = bridge.init(backends=BACKEND, run_id="r")
for number in range(5):
    run._append(Metrics(2**64, number, {"a": 1.0}))
    run._append(Metrics(2**64, number, {"caf\\udce9": 1.0}))
run.log_metrics({"a": 2.0}, step=7)
delivery = run.close()
print(delivery.complete, dict(delivery.not_written))
""",
    )
    assert done.stdout.splitlines() == ["False {'not_encodable': 10}"], done.stdout + done.stderr
    assert "never written to disk: 10 (not_encodable)" in done.stderr
    assert done.stderr.count("a record could not be written: OverflowError") == 1
    assert load_manifest(RunPaths(tmp_path / "tracker_bridge_runs" / "r")).not_written == {"not_encodable": 10}
    assert scripts.metrics(tmp_path / "r.jsonl", "a") == [(7, 2.0)]


def test_a_call_that_raises_takes_no_step(tmp_path: Path) -> None:
    """A time that is none is misuse: nothing of that call is kept, and the next step is the next."""
    scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
run.log_metrics({"x": 1.0})
try:
    run.log_metrics({"x": 2.0}, timestamp=float("nan"))
except ValueError:
    run.log_metrics({"x": 3.0})
""",
    )
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == [(0, 1.0), (1, 3.0)]


def test_a_signal_handler_may_log_while_a_step_is_taken(tmp_path: Path) -> None:
    """A handler that runs inside the script's own call does not wait for what that call holds (naive: it hangs)."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import signal
run = bridge.init(backends=BACKEND, run_id="r")
run._metrics = None  # the way in Python, for C is not traced
def handler(*_):
    run._pace.next_look = 0
    run.log_metrics({"handler": 1.0})
signal.signal(signal.SIGALRM, handler)
def trace(frame, event, argument):
    if event == "line" and frame.f_code.co_name in ("_take_step", "complete"):
        signal.raise_signal(signal.SIGALRM)
    return trace
sys.settrace(trace)
run.log_metrics({"x": 1.0})
run._pace.next_look = 0
run.log_metrics({"x": 2.0})
sys.settrace(None)
run.close()
print("ended")
""",
        timeout=30,
    )
    assert done.stdout.strip() == "ended"
    assert len(scripts.metrics(tmp_path / "r.jsonl", "x")) == 2
    assert len(scripts.metrics(tmp_path / "r.jsonl", "handler")) >= 4


def test_thread_mode_delivers_with_the_same_couriers(tmp_path: Path) -> None:
    """`delivery.mode: thread` needs no other process and delivers at exit too."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init({"backends": BACKEND, "delivery": {"mode": "thread"}, "run_id": "r"})
for step in range(10):
    run.log_metrics({"x": 1.0}, step=step)
""",
    )
    assert done.returncode == 0, done.stderr
    assert len(scripts.metrics(tmp_path / "r.jsonl", "x")) == 10
    assert scripts.statuses(tmp_path / "r.jsonl") == ["finished"]


def test_late_logging_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    """What is logged after close() is not kept, and says so once."""
    done = scripts.run(
        tmp_path,
        HEAD + "run = bridge.init(backends=BACKEND, run_id='r')\nrun.close()\n" + "run.log_metrics({'x': 1})\n" * 2,
    )
    assert done.stderr.count("what is logged after close() is not kept") == 1
    assert scripts.metrics(tmp_path / "r.jsonl", "x") == []


def test_logging_after_close_does_not_reopen_the_run(tmp_path: Path) -> None:
    """A line after close(), a second later, must not bring delivery back to end a finished run as crashed."""
    scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r")
run.log_metrics({"a": 1.0}); time.sleep(0.3)
run.close()
run._pace.next_look = 0
run.log_metrics({"final": 1.0})
""",
    )
    until(lambda: not scripts.processes_of(tmp_path), what="no process is left")
    assert scripts.statuses(tmp_path / "r.jsonl") == ["finished"]


def test_a_run_that_goes_out_of_scope_ends_with_the_script_as_finished(tmp_path: Path) -> None:
    """A function for each run, none closed: every one is finished, not crashed, whatever the garbage collector does."""
    scripts.run(
        tmp_path,
        HEAD
        + """
import gc
def train(number):
    run = bridge.init(backends=BACKEND, run_id=f"sw{number}")
    run.log_metrics({"loss": 1.0}, step=number)
for number in range(3):
    train(number)
gc.collect()
time.sleep(1)
""",
    )
    for number in range(3):
        assert scripts.statuses(tmp_path / f"sw{number}.jsonl") == ["finished"]


def test_half_characters_and_secrets_in_what_is_logged(tmp_path: Path) -> None:
    """A lone surrogate is spelled out and costs no record; values under secret-like keys and options are hidden."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run = bridge.init(backends=BACKEND, run_id="r", params={"api_key": "SECRET-one"})
run.log_metrics({"loss": 1.0, "caf\\udce9": 2.0}, step=0)
run.log_text("caf\\udce9", "x"); run.add_tags(["caf\\udce9"]); run.log_params({"nested": {"password": "SECRET-two"}})
""",
        "--password",
        "SECRET-three",
        "--token=SECRET-four",
    )
    assert done.stderr == ""
    assert scripts.metrics(tmp_path / "r.jsonl", "loss") == [(0, 1.0)]
    assert scripts.metrics(tmp_path / "r.jsonl", "caf\\udce9") == [(0, 2.0)]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py")
    assert b"SECRET" not in written


def test_the_files_of_a_run_belong_to_whom_the_umask_says(tmp_path: Path) -> None:
    """A group that shares a queue directory can read all of a run (files of `tempfile` are for their owner only)."""
    done = scripts.run(
        tmp_path,
        """
import os
os.umask(0o027)
import tracker_bridge as bridge
with bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r", params={"lr": 0.1}) as run:
    run.log_metrics({"x": 1.0})
    run.log_artifact(__file__)
""",
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "tracker_bridge_runs").rglob("*") if path.is_file()]
    assert {"run.json", "state.json", "cursor.msgpack"} <= {path.name for path in files}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {path.name: "0o640" for path in files}
