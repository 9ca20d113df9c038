"""Notebooks: cells in a real Jupyter kernel, which has no main guard, interrupts cells, and ends without `close`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import scripts
from tests.waiting import until

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CONFIG = "project: notebooks\nbackends:\n  jsonl: {path: out.jsonl}\ndelivery: {close_timeout: 60}\n"
NEPTUNE = """
from tracker_bridge.compat.neptune_scale import Run
run = Run(experiment_name="notebook", run_id="r")
def log(step): run.log_metrics({"loss": step / 2}, step=step)
"""
BRIDGE = """
import tracker_bridge as bridge
run = bridge.init("tracker_bridge.yaml", run_id="r")
def log(step): run.log_metrics({"loss": step / 2}, step=step)
"""
DRIVER = """
import json, os, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
def cell(code):
    return client.execute_interactive(code, timeout=60, output_hook=lambda message: None)["content"]
def begin(code):  # returns when the cell has printed something
    asked = client.execute(code)
    while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    return asked
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tracker_bridge.yaml").write_text(CONFIG)
    return tmp_path


def points(folder: Path) -> list[tuple[int, float]]:
    return scripts.metrics(folder / "out.jsonl", "loss")


def drive(folder: Path, text: str) -> str:
    """Run a script that drives a kernel as Jupyter does; what it printed."""
    done = scripts.run(
        folder, DRIVER + text, timeout=110, JUPYTER_RUNTIME_DIR=str(folder / "jupyter"), IPYTHONDIR=str(folder / "ipy")
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("begin", [NEPTUNE, BRIDGE], ids=["neptune_scale", "tracker_bridge"])
def test_a_notebook_runs_to_its_end(folder: Path, begin: str) -> None:
    """Cells that begin, log and close print nothing of ours beside their own, and all is delivered."""
    cells = [begin, "for step in range(20): log(step)", "log(20); print('last')", "run.close(); print('closed')"]
    (folder / "cells.json").write_text(json.dumps(cells))
    done = scripts.run(
        folder,
        """
        import json, nbformat
        from nbclient import NotebookClient
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(open("cells.json"))]
        NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
        said = [[(out["output_type"], out.get("name"), out.get("text")) for out in c.outputs] for c in notebook.cells]
        print(json.dumps(said))
        """,
        timeout=110,
        JUPYTER_RUNTIME_DIR=str(folder / "jupyter"),
        IPYTHONDIR=str(folder / "ipy"),
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    said = [[text for _, name, text in outputs_of_one if name == "stdout"] for outputs_of_one in outputs]
    assert said == [[], [], ["last\n"], ["closed\n"]]
    assert all(kind == "stream" for one in outputs for kind, _, _ in one)
    assert points(folder) == [(step, step / 2) for step in range(21)]
    assert scripts.statuses(folder / "out.jsonl") == ["finished"]


@pytest.mark.parametrize("begin", [NEPTUNE, BRIDGE], ids=["neptune_scale", "tracker_bridge"])
def test_an_interrupted_cell_ends_nothing(folder: Path, begin: str) -> None:
    """The interrupt reaches the cell and not the delivery: what it had logged is kept, and later cells log on."""
    loop = (
        "import itertools\nfor step in itertools.count():\n log(step)\n if step == 50: print('running', flush=True)\n"
        " import time; time.sleep(0.001)"
    )
    printed = drive(
        folder,
        f"""
print(cell({begin!r})["status"])
asked = begin({loop!r})
manager.interrupt_kernel()
while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != asked:
    pass
print(reply["content"]["ename"])
print(cell("last = step + 10; log(last); run.close(); open('last', 'w').write(str(last))")["status"])
client.stop_channels()
manager.shutdown_kernel()
""",
    )
    assert printed.split() == ["ok", "KeyboardInterrupt", "ok"]
    last = int((folder / "last").read_text())
    got = [step for step, _ in points(folder)]
    # The step that was interrupted may have been logged or not.
    assert got in ([*range(last - 10), last], [*range(last - 9), last])
    assert last >= 60
    assert scripts.statuses(folder / "out.jsonl") == ["finished"]


@pytest.mark.parametrize(("now", "statuses"), [(False, ["finished"]), (True, ["crashed"])], ids=["asked", "killed"])
def test_a_kernel_that_ends_without_close_delivers_everything(folder: Path, now: bool, statuses: list[str]) -> None:
    """Shut down from the menu or killed, after a cell that failed: every value arrives, and nothing of us stays."""
    drive(
        folder,
        f"""
assert cell({NEPTUNE!r})["status"] == "ok"
assert cell("for step in range(500): log(step)")["status"] == "ok"
assert cell("1 / 0")["status"] == "error"  # a cell that fails ends nothing (naive: the run is failed)
client.stop_channels()
manager.shutdown_kernel(now={now})
""",
    )
    until(lambda: (folder / "out.jsonl").exists() and scripts.statuses(folder / "out.jsonl") == statuses, 60)
    assert points(folder) == [(step, step / 2) for step in range(500)]
    until(lambda: not scripts.processes_of(folder), 30)
