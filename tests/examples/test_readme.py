"""Every code block of README.md is run, loaded or compared with what CI runs. A block of an unknown kind fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import scripts
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
YAML = [block for block in BLOCKS if block.language == "yaml"]


def execute(command: list[str], cwd: Path) -> None:
    """Run a command in a user's environment, with the tests' interpreter first on the path; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = scripts.environment(PATH=path, OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_each_block_is_of_a_kind_that_is_checked() -> None:
    """The README has blocks of each checked kind, and no block escapes the checks."""
    assert {block.language for block in BLOCKS} == {"bash", "python", "yaml", *DRAWINGS}
    assert README.count("```") == 2 * len(BLOCKS)


def test_the_setup_commands_are_what_ci_and_the_example_tests_run() -> None:
    """Each of the two commands is one line, and its parts are commands of `.ci/run` or the example that tests run."""
    assert len(SETUP) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    known = {plain_command(line) for line in ci.splitlines()} | {".venv/bin/python examples/bert_gradients.py"}
    for block in SETUP:
        assert block.code.count("\n") == 1
        assert [part for part in block.code.strip().split(" && ") if plain_command(part) not in known] == []
    assert SETUP[0].code.strip().endswith("examples/bert_gradients.py")
    assert SETUP[1].code.strip().endswith("pytest -n 2")


def plain_command(line: str) -> str:
    """A command line without what differs in CI for its own reasons: place, less output, less time."""
    line = re.sub(r'"\$(python|work/dev/bin/python)"', "python3", line.strip().replace(" -q --no-compile ", " "))
    return re.sub(r'"\$work/dev(?:/(bin/\w+))?"', lambda m: f".venv/{m[1]}" if m[1] else ".venv", line)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_each_yaml_block_is_a_valid_config(block: Block, tmp_path: Path) -> None:
    """`load_config` takes the block as a file and finds the backends that it names."""
    file = tmp_path / "config.yaml"
    file.write_text(block.code, encoding="utf-8")
    assert load_config(file, environ={}, cwd=tmp_path).backends


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_reader_can_run_each_block_in_order(tmp_path: Path) -> None:
    """Script and shell blocks run one after the other in one directory, and in the end everything is delivered.

    Scripts run after the lines that make a model, an optimizer and a loader; blocks with a file name are that file.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in BLOCKS:
        if block.name is not None:
            (tmp_path / block.name).write_text(block.code, encoding="utf-8")
        if block.language == "python":
            (tmp_path / f"{block}.py").write_text(PRELUDE + block.code, encoding="utf-8")
            execute([sys.executable, "-W", "error", f"{block}.py"], tmp_path)
        if block.language == "bash" and block not in SETUP:
            execute(["bash", "-euo", "pipefail", "-c", block.code], tmp_path)
    execute(["tracker-bridge", "status"], tmp_path)


def test_each_guarantee_names_its_test() -> None:
    """The table has a row for each guarantee in order, and each row's test is there under that name."""
    rows = re.findall(r"^\| (\d) \| .* \| `(test_guarantee_(\d)_\w+)` \|$", README, re.MULTILINE)
    tests = (ROOT / "tests" / "guarantees" / "test_guarantees.py").read_text(encoding="utf-8")
    assert [(number, number) for number in "12345678"] == [(row, number) for row, _, number in rows]
    assert re.findall(r"^def (test_\w+)", tests, re.MULTILINE) == [name for _, name, _ in rows]


def test_each_link_of_the_readme_leads_to_a_file() -> None:
    """Relative links and anchors lead to something that exists."""
    headings = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", README, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", README):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        assert not path or (ROOT / path).exists(), target
        assert not anchor or path or anchor in headings, target
