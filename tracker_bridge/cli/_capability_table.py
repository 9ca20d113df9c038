"""What the built-in adapters can hold, as a Markdown table made from their `capabilities`: the one in the README.

One column for each adapter, one row for each question. Knows capabilities only, no tracker by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracker_bridge.adapter import Capabilities, NameRule, TagRule


def capability_table(adapters: Mapping[str, Capabilities]) -> str:
    """A Markdown table without a trailing newline; the columns are in the order of `adapters`."""
    head = ("", *(f"`{kind}`" for kind in adapters))
    rows = [head, ("---",) * len(head)]
    rows += [(name, *(answer(can) for can in adapters.values())) for name, answer in _ROWS.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _medium(name: str) -> Callable[[Capabilities], str]:
    return lambda can: "kept" if name in can.media else "degraded"


def _images(can: Capabilities) -> str:
    if "image" in can.media:
        return "kept"
    return "as a file" if "artifact" in can.media else "degraded"


def _late(can: Capabilities) -> str:
    return {"any": "kept", "increasing": "dropped, counted", "late_run": "kept apart"}[can.steps]


def _fractions(can: Capabilities) -> str:
    return "kept" if can.step_type == "float" else "dropped, counted"


def _infinities(can: Capabilities) -> str:
    return "kept" if can.non_finite == "native" else "in `<name>/non_finite`"


def _nan(can: Capabilities) -> str:
    return "in `<name>/non_finite`" if can.non_finite == "none" else "kept"


def _characters(can: Capabilities) -> str:
    rule = can.names
    allowed = "any" if rule.allowed == NameRule().allowed else _code(rule.allowed)
    return f"{allowed}, clean path" if rule.path else allowed


def _name_length(can: Capabilities) -> str:
    return "any" if can.names.max_length is None else f"{can.names.max_length:,} {can.names.unit}"


def _reserved(can: Capabilities) -> str:
    return ", ".join(map(_code, can.names.reserved)) or "none"


def _params(can: Capabilities) -> str:
    nesting = "nested" if can.params.separator is None else f"flat with {_code(can.params.separator)}"
    return f"{'typed' if can.params.typed else 'text'}, {nesting}"


def _changed(can: Capabilities) -> str:
    return "replaced" if can.params.mutable else "first kept, new one noted"


def _param_limits(can: Capabilities) -> str:
    limits = {"key": can.params.max_key_length, "value": can.params.max_value_length}
    return ", ".join(f"{name} {limit:,}" for name, limit in limits.items() if limit is not None) or "none"


def _tags(can: Capabilities) -> str:
    rule = can.tags
    if rule.form == "none":
        return "none"
    form = {"list": "list", "mapping": "key and value", "text": "as text"}[rule.form]
    return form + _tag_limits(rule)


def _tag_limits(rule: TagRule) -> str:
    length = "" if rule.max_length is None else f", {rule.max_length:,}"
    return length if rule.removable else f"{length}, not removable"


def _again(can: Capabilities) -> str:
    return "ignored" if can.duplicates == "ignored" else "visible twice"


def _write(can: Capabilities) -> str:
    row = "" if can.max_row is None else f", {can.max_row:,} in a row"
    return f"{can.max_points:,} points, {can.max_items:,} items{row}"


def _code(text: str) -> str:
    # A bar would end the cell, also inside backticks.
    return "`" + text.replace("|", "\\|") + "`"


_ROWS: Mapping[str, Callable[[Capabilities], str]] = {
    "late and repeated steps": _late,
    "fractional steps": _fractions,
    "NaN": _nan,
    "infinities": _infinities,
    "values become": lambda can: can.value_type,
    "characters of names": _characters,
    "length of names": _name_length,
    "reserved names": _reserved,
    "params": _params,
    "changed params": _changed,
    "most characters of a param": _param_limits,
    "tags (most characters)": _tags,
    "texts": _medium("text"),
    "histograms": _medium("histogram"),
    "files": _medium("artifact"),
    "images": _images,
    "sent again after a crash": _again,
    "most in one batch": _write,
}
