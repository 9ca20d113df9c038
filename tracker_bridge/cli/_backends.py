"""`tracker-bridge backends [ADAPTER]`: which adapters there are, what they need, what they can hold and be told."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, Optional

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from tracker_bridge import registry
from tracker_bridge.adapter import CONTRACT_VERSION, Adapter, Capabilities
from tracker_bridge.cli._capability_table import capability_table
from tracker_bridge.cli._options import JsonOption
from tracker_bridge.cli._output import cell, facts, make_table, print_json, stdout, visible
from tracker_bridge.cli._sdk import install_command, requirements
from tracker_bridge.config import describe_type
from tracker_bridge.errors import AdapterLoadError, UsageError

_DISTRIBUTION = "tracker-bridge"
_KEEP_NOTHING = ("console", "memory")


def backends(
    adapter: Annotated[
        Optional[str], typer.Argument(metavar="[ADAPTER]", help="Show the options and limits of this one.")
    ] = None,
    json: JsonOption = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print what the built-in trackers (or ADAPTER) can hold, as a Markdown table."),
    ] = False,
) -> None:
    """List the installed adapters: what they need, what they can hold and which options they take.

    Exit status 1 if an adapter cannot be loaded.
    """
    kinds = registry.known_kinds()
    if adapter is not None and adapter not in kinds:
        raise UsageError(registry.unknown_kind(adapter))
    if markdown:
        if json:
            raise UsageError("--json and --markdown are two forms of one output; give one of them")
        chosen = built_in_trackers() if adapter is None else (adapter,)
        typer.echo(capability_table({kind: registry.adapter_class(kind).capabilities for kind in chosen}))
        return
    described = [describe_adapter(kind) for kind in (kinds if adapter is None else (adapter,))]
    if json:
        print_json({"contract_version": CONTRACT_VERSION, "adapters": described})
    elif adapter is not None:
        _print_one(stdout(), described[0])
    else:
        _print_all(stdout(), described)
    if any(entry["error"] for entry in described):
        raise typer.Exit(1)


def built_in_trackers() -> tuple[str, ...]:
    """The adapters that this distribution brings and that keep what they get, in alphabetical order."""
    own = [kind for kind, point in registry.adapter_kinds().items() if point.dist and point.dist.name == _DISTRIBUTION]
    return tuple(kind for kind in own if kind not in _KEEP_NOTHING)


def describe_adapter(kind: str) -> dict[str, Any]:
    """All about one adapter, JSON-able."""
    entry: dict[str, Any] = {"kind": kind, "package": None, "package_version": None, "class": None, "error": None}
    point = registry.adapter_kinds().get(kind)
    if point is not None:
        entry["class"] = point.value
        if point.dist is not None:
            entry.update(package=point.dist.name, package_version=point.dist.version)
    try:
        cls = registry.adapter_class(kind)
    except AdapterLoadError as error:
        return {**entry, "error": str(error)}
    needs = requirements(cls)
    missing = [requirement for requirement, version in needs if version is None]
    return {
        **entry,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "summary": (inspect.getdoc(cls) or "").partition("\n")[0],
        "requires": [
            {"module": requirement.module, "version": version, "install": requirement.install}
            for requirement, version in needs
        ],
        "installed": not missing,
        "install": install_command(missing) if missing else None,
        "capabilities": _plain_capabilities(cls.capabilities),
        "options": _options(cls),
    }


def _plain_capabilities(capabilities: Capabilities) -> dict[str, Any]:
    plain = dataclasses.asdict(capabilities)
    plain["media"] = sorted(capabilities.media)
    return plain


def _options(cls: type[Adapter[Any]]) -> list[dict[str, Any]]:
    options = []
    for field in msgspec.structs.fields(cls.options_type):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        options.append(
            {
                "name": field.encode_name,
                "type": describe_type(field.type),
                "required": field.required,
                "default": msgspec.to_builtins(default, enc_hook=str),
            }
        )
    return options


def _print_all(console: Console, adapters: list[dict[str, Any]]) -> None:
    table = make_table(
        ("adapter", "left"), ("needs", "left"), ("NaN and inf", "left"), ("steps", "left"), ("media", "left")
    )
    for entry in adapters:
        if entry["error"]:
            table.add_row(cell(entry["kind"], "bold"), cell(entry["error"], "red"))
            continue
        can = entry["capabilities"]
        table.add_row(
            cell(entry["kind"], "bold"),
            _needs(entry),
            cell({"native": "kept", "nan": "NaN kept"}.get(can["non_finite"], "companion series")),
            cell(STEPS[can["steps"]]),
            cell(", ".join(can["media"])),
        )
    console.print(table)
    console.print(Text("Options and limits of one: tracker-bridge backends ADAPTER", style="dim"))


STEPS = {"any": "any order", "increasing": "increasing only", "late_run": "late ones apart"}


def _needs(entry: dict[str, Any]) -> Text:
    if not entry["requires"]:
        return Text("nothing", style="dim")
    text = Text(", ".join(f"{need['module']} {need['version']}" for need in entry["requires"] if need["version"]))
    if entry["install"]:
        text.append("; " if text else "")
        text.append("missing: ", style="yellow")
        text.append(entry["install"], style="bold")
    return text


def _print_one(console: Console, entry: dict[str, Any]) -> None:
    if entry["error"]:
        console.print(Text(visible(entry["error"]), style="red"), soft_wrap=True)
        return
    package = f"{entry['package']} {entry['package_version']}" if entry["package"] else None
    console.print(
        facts(
            [
                ("adapter", cell(entry["kind"], "bold")),
                ("", entry["summary"]),
                ("from", package),
                ("needs", _needs(entry)),
            ]
        )
    )
    console.print()
    options = make_table(("option", "left"), ("type", "left"), ("default", "left"))
    for option in entry["options"]:
        default = "required" if option["required"] else msgspec.json.encode(option["default"]).decode()
        options.add_row(cell(option["name"], "bold"), cell(option["type"]), cell(default))
    console.print(options if entry["options"] else Text("no options", style="dim"))
    console.print()
    limits = make_table(("limit", "left"), ("", "left"))
    for name, value in _flat(entry["capabilities"]):
        limits.add_row(cell(name), cell(value))
    console.print(limits)


def _flat(capabilities: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in capabilities.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        elif value not in (None, [], ()):
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _word(value)
            rows.append((f"{prefix}{name}", shown))
    return rows


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
