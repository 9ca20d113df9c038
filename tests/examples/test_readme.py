"""Every code block of README.md is run, loaded or compared with what CI runs. A block of an unknown kind fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tracker_bridge.config import load_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(?P<language>\S*)(?: (?P<name>\S+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
DRAWINGS = {"text"}
PRELUDE = """
import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)
model = BertForSequenceClassification(BertConfig(num_labels=2, **size))
optimizer = torch.optim.AdamW(model.parameters())
loader = [dict(input_ids=torch.randint(50, (4, 12)), labels=torch.randint(2, (4,))) for _ in range(25)]
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: what language it says it is, the file name it gives, its line in the README."""

    language: str
    name: str | None
    code: str
    line: int

    def __str__(self) -> str:
        return f"line{self.line}"


BLOCKS = [
    Block(match["language"], match["name"], match["code"], README.count("\n", 0, match.start()) + 1)
    for match in FENCE.finditer(README)
]
SETUP = [block for block in BLOCKS if block.language == "bash" and "-m venv" in block.code]
SHELL = [block for block in BLOCKS if block.language == "bash" and block not in SETUP]
PYTHON = [block for block in BLOCKS if block.language == "python"]
YAML = [block for block in BLOCKS if block.language == "yaml"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with the examples, an environment and the files that the README's reader has written."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in BLOCKS:
        if block.name is not None:
            (tmp_path / block.name).write_text(block.code, encoding="utf-8")
    return tmp_path


def environment() -> dict[str, str]:
    """This one's, without settings of a tracker or of ours, with the interpreter of the tests first on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRACKER_BRIDGE", "WANDB", "MLFLOW", "NEPTUNE"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "OMP_NUM_THREADS": "1"}


def execute(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=110, check=False)


def undelivered(directory: Path) -> str:
    """What `tracker-bridge status` says if anything of the runs in `directory` is not delivered, else nothing."""
    status = execute(["tracker-bridge", "status"], directory)
    return status.stdout + status.stderr if status.returncode else ""


def test_each_block_is_of_a_kind_that_is_checked() -> None:
    """The README has blocks of each checked kind, and no block escapes the checks."""
    assert {block.language for block in BLOCKS} == {"bash", "python", "yaml", *DRAWINGS}
    assert README.count("```") == 2 * len(BLOCKS)


def test_the_setup_commands_are_single_lines_that_ci_runs() -> None:
    """The two commands for a fresh machine are one line each, and `.ci/run` has them word for word."""
    assert len(SETUP) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for block in SETUP:
        assert block.code.count("\n") == 1
        assert block.code.strip() in ci


@pytest.mark.parametrize("block", YAML, ids=str)
def test_each_yaml_block_is_a_valid_config(block: Block, tmp_path: Path) -> None:
    """`load_config` takes the block as a file and finds the backends that it names."""
    file = tmp_path / "config.yaml"
    file.write_text(block.code, encoding="utf-8")
    assert load_config(file, environ={}, cwd=tmp_path).backends


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_each_python_block_runs_and_delivers(block: Block, directory: Path) -> None:
    """The block runs after the lines that make a model, an optimizer and a loader, and everything is delivered."""
    script = directory / "block.py"
    script.write_text(PRELUDE + block.code, encoding="utf-8")
    done = execute([sys.executable, "-W", "error", script.name], directory)
    assert done.returncode == 0, done.stderr
    assert undelivered(directory) == ""


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_each_shell_block_runs(block: Block, directory: Path) -> None:
    """The block's commands succeed, one after the other, in a directory that holds one finished run."""
    first = execute([sys.executable, "examples/minimal.py"], directory)
    assert first.returncode == 0, first.stderr
    done = execute(["bash", "-euo", "pipefail", "-c", block.code], directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert undelivered(directory) == ""


def test_each_link_of_the_readme_leads_to_a_file() -> None:
    """Relative links and anchors lead to something that exists."""
    headings = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", README, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", README):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        assert not path or (ROOT / path).exists(), target
        assert not anchor or path or anchor in headings, target
