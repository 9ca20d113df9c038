"""`tracker-bridge tail RUN`: follows a run as it is written, a line for each step and each alert. Reads only."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import stdout, visible
from tracker_bridge.cli._runs import find_run, queue_dir
from tracker_bridge.health import HealthConfig, Monitor, find_loss
from tracker_bridge.journal import Entry, JournalReader
from tracker_bridge.records import Alert, AnyRecord, Metrics, NormVector, RunFinished, Step
from tracker_bridge.report import configured_rules, norm_of
from tracker_bridge.rundir import RunPaths, load_manifest

_PAUSE = 0.2
_TONES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


@dataclass(slots=True)
class _Row:
    step: Step
    total: float | None = None
    note: str = ""
    values: dict[str, float] = field(default_factory=dict)


def tail(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id or path of a run.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Steps from the past to begin with.")] = 10,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a run: step, loss, total gradient norm, and each alert as it arises. Ends with the run, or at Ctrl-C.

    With --json a JSON object a line.
    """
    paths = find_run(run, queue_dir(directory, config))
    past: list[_Row | Alert | str] = []
    console = None if json else stdout()
    try:
        for item in _follow(paths):
            if item is None:  # what was there is read; from here on it is news
                for old in past[-lines:] if lines else []:
                    _print(console, old)
                past = []
                lines = -1
            elif lines >= 0:
                past.append(item)
                del past[: -max(1, lines)]
            else:
                _print(console, item)
    except KeyboardInterrupt:
        return


def _follow(paths: RunPaths) -> Iterator[_Row | Alert | str | None]:
    """Rows and alerts as they come; None once, when the past is read; the status as the last."""
    monitor, totals = Monitor(configured_rules(load_manifest(paths).config)), norm_of()
    row: _Row | None = None
    caught_up = False
    ended = ""
    with JournalReader(paths.journal) as reader:
        while True:
            items = reader.read()
            for item in items:
                if not isinstance(item, Entry):
                    continue
                record = item.record
                ended = record.status if isinstance(record, RunFinished) else ended
                if isinstance(record, (Metrics, NormVector)):
                    if row is not None and row.step != record.step:
                        yield row
                        row = None
                    row = row or _Row(record.step)
                    _add(row, record)
                total = totals(record)
                if row is not None and total is not None:
                    row.total = total
                yield from monitor.feed(record)
            if items:
                continue
            over = ended or _over(paths)
            if over and row is not None:
                yield row
            if not caught_up:
                caught_up = True
                yield None
            if over:
                yield over
                return
            time.sleep(_PAUSE)


def _over(paths: RunPaths) -> str:
    manifest = load_manifest(paths)
    if manifest.status != "running":
        return manifest.status
    return "crashed" if manifest.owner is not None and not manifest.owner.is_alive() else ""


def _add(row: _Row, record: AnyRecord) -> None:
    if isinstance(record, NormVector):
        if record.skipped:
            row.note = "skipped"
        elif record.clip_coefficient is not None and record.clip_coefficient < 1:
            row.note = f"clipped to {record.clip_coefficient:.3g}"
    elif isinstance(record, Metrics):
        row.values.update(record.values)


def _print(console: Any, item: _Row | Alert | str) -> None:
    if console is None:
        sys.stdout.write(jsonlib.dumps(_plain(item)) + "\n")
        sys.stdout.flush()
    elif isinstance(item, Alert):
        text = Text(f"step {item.step}  {visible(item.severity)}  ", style=_TONES.get(item.severity, "bold"))
        console.print(text.append(visible(f"{item.rule}: {item.title}"), style="default"), soft_wrap=True)
    elif isinstance(item, str):
        console.print(Text(f"run {visible(item)}", style="dim"))
    else:
        console.print(_line(item), soft_wrap=True)


def _line(row: _Row) -> Text:
    text = Text(f"step {row.step}".ljust(12), style="bold")
    loss = find_loss(row.values, HealthConfig())
    shown = [loss] if loss else list(row.values)[:3]
    for name in shown:
        text.append(f"  {visible(name)} ", style="dim").append(f"{row.values[name]:.4g}", style="not dim")
    if row.total is not None:
        text.append("  norm ", style="dim").append(f"{row.total:.4g}", style="not dim")
    return text.append(f"  {row.note}" if row.note else "", style="yellow")


def _plain(item: _Row | Alert | str) -> dict[str, Any]:
    if isinstance(item, str):
        return {"status": item}
    if isinstance(item, Alert):
        return {
            "alert": item.rule,
            "step": item.step,
            "severity": item.severity,
            "title": item.title,
            "layers": list(item.layers),
        }
    plain: dict[str, Any] = msgspec.to_builtins({"step": item.step, "total_norm": item.total, "metrics": item.values})
    return {**plain, "note": item.note} if item.note else plain
