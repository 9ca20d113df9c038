"""`tracker-bridge doctor`: looks at everything that a run will need on this machine, and says what to do about it.

It connects to the configured servers, makes a small file in the queue's folder and removes it. It shows no secret.
"""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, Union

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from tracker_bridge import registry
from tracker_bridge._extensions import NATIVE, NO_EXTENSIONS, WANTED
from tracker_bridge._version import __version__
from tracker_bridge.cli._options import ConfigOption, JsonOption
from tracker_bridge.cli._output import cell, make_table, plural, print_json, size_text, state_cell, stdout, visible
from tracker_bridge.cli._probe import probe
from tracker_bridge.cli._runs import summarise_all
from tracker_bridge.cli._sdk import distribution_version, requirements
from tracker_bridge.config import BackendConfig, Config, ConfigError, load_config, locate_queue, scrub, secret_values

Verdict = Literal["ok", "warning", "problem"]
_LIBRARIES = ("torch", "numpy", "msgspec")
_PROBE_SIZE = 64 * 1024


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    about: str
    verdict: Verdict
    text: str
    remedy: Union[str, None] = None


def doctor(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Check versions, configuration, backends, servers and the queue's folder, and say what to do.

    Exit status 1 if there is a problem.
    """
    findings = list(examine(config))
    if json:
        print_json({"findings": findings})
    else:
        _print(stdout(), findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)


def examine(source: Path | None) -> Iterable[Finding]:
    """Everything that there is to say, in the order of importance to a reader."""
    yield from _versions()
    loaded: Config | None = None
    try:
        loaded = load_config(source)
        where = "none found, TensorBoard is the default" if loaded.origin == "default" else loaded.origin
        names = ", ".join(backend.name for backend in loaded.backends) or "none"
        yield Finding(about="configuration", verdict="ok", text=f"{where}; backends: {names}")
    except ConfigError as error:
        yield Finding(about="configuration", verdict="problem", text=str(error))
    variables = sorted(name for name in os.environ if name.upper().startswith("TRACKER_BRIDGE_"))
    if variables:
        yield Finding(about="environment", verdict="ok", text=", ".join(variables))
    if loaded is not None:
        secrets = secret_values(loaded, os.environ)
        with ThreadPoolExecutor(max_workers=8) as pool:
            for findings in pool.map(_backend, loaded.backends):
                yield from (_scrubbed(finding, lambda text: scrub(text, secrets)) for finding in findings)
    try:
        folder = loaded.queue.dir if loaded is not None else locate_queue(source)
    except ConfigError:
        return
    yield from _queue(folder, None if loaded is None else loaded.queue.max_disk)


def _versions() -> Iterable[Finding]:
    yield Finding(about="tracker_bridge", verdict="ok", text=__version__)
    python = f"{platform.python_version()} at {sys.executable}, {platform.platform(terse=True)}"
    yield Finding(about="python", verdict="ok", text=python)
    for name in _LIBRARIES:
        version = distribution_version(name)
        if version is None:
            yield Finding(about=name, verdict="problem", text="not installed", remedy=f"pip install {name}")
        else:
            yield Finding(about=name, verdict="ok", text=version)
    yield _native()


def _native() -> Finding:
    """Whether the modules in C are there; without them everything works, and a logging call takes longer."""
    about = "modules in C"
    if not WANTED:
        return Finding(about=about, verdict="ok", text=f"not used ({NO_EXTENSIONS})")
    # Looked for in its folder, since to ask for it by name imports the package around it, and torch with the collector.
    root = Path(__file__).parent.parent
    if all(PathFinder.find_spec("_native", [str(root / package)]) for package in NATIVE):
        return Finding(about=about, verdict="ok", text="built")
    how = "a C compiler and Python's headers, and tracker_bridge installed again"
    return Finding(about=about, verdict="ok", text=f"not built, Python does the same more slowly; they take {how}")


def _backend(backend: BackendConfig) -> list[Finding]:
    about = f"backend {backend.name}"
    cls = registry.adapter_class(backend.adapter)
    versions = ", ".join(f"{need.module} {version}" for need, version in requirements(cls)) or "needs nothing"
    findings = [Finding(about=about, verdict="ok", text=f"{backend.adapter}: {versions}")]
    try:
        server = registry.make_adapter(backend.adapter, backend.options).server() or _first_url(backend.options)
    except Exception as error:
        # An adapter of a third party may do anything here; the report must still be made.
        return [*findings, Finding(about=about, verdict="problem", text=f"{type(error).__name__}: {error}")]
    if server is None:
        return findings
    reached = probe(server)
    if reached.ok:
        return [*findings, Finding(about=about, verdict="ok", text=f"{reached.address} answers ({reached.text})")]
    return [
        *findings,
        Finding(
            about=about,
            verdict="problem",
            text=f"{reached.address} cannot be reached: {reached.text}",
            remedy="start the server or correct its address; meanwhile a run keeps its records for tracker-bridge sync",
        ),
    ]


def _first_url(options: Any) -> str | None:
    urls = (value for value in options.values() if isinstance(value, str))
    return next((url for url in urls if url.startswith(("http://", "https://"))), None)


def _scrubbed(finding: Finding, clean: Callable[[str], str]) -> Finding:
    return msgspec.structs.replace(finding, text=clean(finding.text))


def _queue(folder: Path, max_disk: int | None) -> Iterable[Finding]:
    about = "queue"
    present = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not present.is_dir():
        yield Finding(
            about=about, verdict="problem", text=f"{present} is not a folder", remedy="set queue.dir to another folder"
        )
        return
    try:
        slow = _try_storage(present)
    except OSError as error:
        yield Finding(
            about=about,
            verdict="problem",
            text=f"{folder} cannot be written: {(error.strerror or str(error)).lower()}",
            remedy="set queue.dir (or TRACKER_BRIDGE_DIR) to a folder on a local disk that you may write",
        )
        return
    made = "" if present == folder else ", not made yet"
    if slow:
        yield Finding(
            about=about,
            verdict="warning",
            text=f"{folder}{made}: no {slow} on this file system; slower writes are used instead",
            remedy="set queue.dir to a folder on a local disk",
        )
    else:
        yield Finding(about=about, verdict="ok", text=f"{folder}{made}; memory mapping and preallocation work")
    yield _space(about, present, max_disk)
    if folder.is_dir():
        yield from _undelivered(about, folder)


def _try_storage(folder: Path) -> str | None:
    """What the folder's file system cannot do (None: it can do all). Raises `OSError` if it cannot be written."""
    with tempfile.TemporaryFile(dir=folder, prefix=".tracker_bridge-doctor-") as file:
        lacking = None
        try:
            os.posix_fallocate(file.fileno(), 0, _PROBE_SIZE)
        except (AttributeError, OSError):
            lacking = "preallocation"
            file.write(bytes(_PROBE_SIZE))
            file.flush()
        try:
            with mmap.mmap(file.fileno(), _PROBE_SIZE) as mapped:
                mapped[0] = 1
        except (OSError, ValueError):
            return "memory mapping"
        return lacking


def _space(about: str, folder: Path, max_disk: int | None) -> Finding:
    free = shutil.disk_usage(folder).free
    if max_disk is not None and free < max_disk:
        return Finding(
            about=about,
            verdict="warning",
            text=f"{size_text(free)} free, less than queue.max_disk ({size_text(max_disk)})",
            remedy="free some space, lower queue.max_disk, or set queue.dir to another disk",
        )
    return Finding(about=about, verdict="ok", text=f"{size_text(free)} free")


def _undelivered(about: str, folder: Path) -> Iterable[Finding]:
    runs, problems = summarise_all(folder)
    for problem in problems:
        yield Finding(about=about, verdict="warning", text=problem)
    unfinished = sum(run.unfinished for run in runs)
    if unfinished:
        text = f"{plural(unfinished, 'run')} of {len(runs)} not wholly delivered"
        yield Finding(about=about, verdict="warning", text=text, remedy="tracker-bridge sync")


def _print(console: Console, findings: list[Finding]) -> None:
    table = make_table(("", "left"), ("", "left"), ("", "left"))
    table.show_header = False
    last = ""
    for finding in findings:
        text = cell(finding.text)
        if finding.remedy:
            text.append("\n-> ", style="dim").append(visible(finding.remedy), style="bold")
        about = cell(finding.about, "bold") if finding.about != last else Text()
        table.add_row(state_cell(finding.verdict), about, text)
        last = finding.about
    console.print(table)
    problems = sum(finding.verdict == "problem" for finding in findings)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    if problems:
        summary = Text(f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}.", style="red")
    elif warnings:
        summary = Text(f"No problem, {plural(warnings, 'warning')}.", style="yellow")
    else:
        summary = Text("All is well.", style="green")
    console.print(summary)
