"""The story of a run as data and as lines: how it went, what was found, what to try. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tracker_bridge.reader import gap_text
from tracker_bridge.records import Alert
from tracker_bridge.report._story import Series, Story

Tone = Literal["title", "plain", "dim", "error", "warning", "info", "ok", "advice"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the story: its text (foreign, not yet made safe for a terminal), its tone, its indentation."""

    text: str
    tone: Tone = "plain"
    indent: int = 0


def diagnosis(story: Story) -> dict[str, Any]:
    """The story as plain data for `--json`."""
    worst = story.worst()
    return {
        "run": story.run_id,
        "name": story.name,
        "status": story.status,
        "message": story.message,
        "steps": story.steps,
        "layers": sum(len(model.norms.names) for model in story.models),
        "verdict": verdict(story),
        "severity": None if worst is None else worst.severity,
        "loss": None if story.loss is None else _ends(story.loss),
        "total_norm": _norm_ends(story),
        "alerts": [
            {
                "rule": alert.rule,
                "step": alert.step,
                "time_ns": alert.time_ns,
                "severity": alert.severity,
                "title": alert.title,
                "text": alert.text,
                "layers": list(alert.layers),
                "evidence": alert.evidence,
            }
            for alert in story.alerts
        ],
        "lost": [
            {
                "sequence": lost.gap.sequence,
                "count": lost.gap.count,
                "reason": lost.gap.reason,
                "after_step": lost.after,
            }
            for lost in story.lost
        ],
    }


def verdict(story: Story) -> str:
    """One sentence."""
    grave = [alert for alert in story.alerts if alert.severity != "info"]
    if grave:
        worst = story.worst()
        assert worst is not None
        return f"{worst.title} (step {worst.step})"
    if story.alerts:
        return f"No trouble found; worth knowing: {story.alerts[0].title}"
    if not story.steps:
        return "Nothing was recorded that could be judged"
    return "No trouble found"


def story_lines(story: Story) -> list[Line]:
    """The story in a page: when, where, what kind, what changed just before, what to try."""
    lines = [Line(f"{story.title}: {verdict(story)}", "title"), *_setting(story)]
    for alert in story.alerts:
        lines += [Line(""), *_alert(alert)]
    if not story.alerts and story.steps:
        lines += [Line(""), Line("Every rule was silent.", "ok")]
    return lines


def _setting(story: Story) -> list[Line]:
    lines = [Line(f"run {story.run_id}, {story.status}" + (f" ({story.message})" if story.message else ""), "dim", 1)]
    for model in story.models:
        named = f" of {model.name}" if model.name else ""
        lines.append(
            Line(f"{len(model.norms)} samples{named}, {len(model.norms.names)} layers{_norm_text(model)}", "dim", 1)
        )
    if story.loss is not None and len(story.loss.values):
        first, last = _ends(story.loss)
        lines.append(Line(f"{story.loss.name}: {_short(first)} at the start, {_short(last)} at the end", "dim", 1))
    else:
        lines.append(Line("no loss was logged: log one, and the rules tell more", "dim", 1))
    lines += [Line(text, "warning", 1) for text in lost_texts(story)]
    return lines


_MOST_GAPS = 5


def lost_texts(story: Story) -> list[str]:
    """A sentence for each gap in the journal, and how many more there are."""
    texts = [gap_text(lost.gap, lost.after) for lost in story.lost[:_MOST_GAPS]]
    more = story.lost[_MOST_GAPS:]
    if more:
        texts.append(f"and {sum(lost.gap.count for lost in more):,} records in {len(more)} more places")
    return texts


def _alert(alert: Alert) -> list[Line]:
    tone: Tone = alert.severity if alert.severity in ("error", "warning", "info") else "info"  # type: ignore[assignment]
    lines = [Line(f"step {alert.step}  {alert.severity}  {alert.rule}: {alert.title}", tone)]
    explanation = alert.text.partition(" Check first: ")[0]
    lines.append(Line(explanation, indent=1))
    if alert.layers:
        more = f" and {len(alert.layers) - 5} more" if len(alert.layers) > 5 else ""
        lines.append(Line(f"where: {', '.join(alert.layers[:5])}{more}", indent=1))
    for change in _texts(alert.evidence.get("changed_before")):
        lines.append(Line(f"changed before: {change}", indent=1))
    for check in _texts(alert.evidence.get("check")):
        lines.append(Line(f"try: {check}", "advice", 1))
    return lines


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _ends(series: Series, part: int = 20) -> tuple[float, float]:
    few = max(1, min(part, len(series.values) // 4))
    return float(np.median(series.values[:few])), float(np.median(series.values[-few:]))


def _norm_ends(story: Story) -> tuple[float, float] | None:
    if not story.models or not len(story.models[0].norms):
        return None
    total = story.models[0].norms.total
    few = max(1, min(20, len(total) // 4))
    return float(np.median(total[:few])), float(np.median(total[-few:]))


def _norm_text(model: Any) -> str:
    total = model.norms.total[np.isfinite(model.norms.total)]
    if not len(total):
        return ""
    return f", total norm {_short(float(np.median(total)))} (median), at most {_short(float(total.max()))}"


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else str(value)
