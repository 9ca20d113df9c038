"""Records in, alerts out: feeds each record to the rules and turns findings into alerts, one for each cause.

Knows records and numpy; no file, no clock and no torch. The same records always give the same alerts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.health import (
    _rule_clipping,
    _rule_dead,
    _rule_explosion,
    _rule_loss,
    _rule_non_finite,
    _rule_overflow,
    _rule_spike,
    _rule_vanishing,
)
from tracker_bridge.health._advice import Circumstances, advise
from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import depth_groups, number, root_numel, weight_slots
from tracker_bridge.health._signals import find_learning_rate, find_loss, rate_in
from tracker_bridge.health._snapshot import Memory, dump, load
from tracker_bridge.health._state import Finding, Layers, Runs, Sample, TableState
from tracker_bridge.health._window import REFRESH, medians
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Metrics,
    NormVector,
    Params,
    RunFinished,
    RunStarted,
    SeriesTable,
    Snapshot,
    Step,
    unpack_mask,
    unpack_values,
)

RULES = (
    "non_finite",
    "overflow_storm",
    "spike",
    "explosion",
    "diverged",
    "vanishing",
    "dead_layer",
    "no_gradient",
    "clipping_stopped",
    "clip_saturation",
    "no_learning",
)
"""Every rule, gravest first."""

_MOST_TABLES = 16
_FIRST_SAMPLES = 20
_MOST_LAYERS = 20

_SAME_CAUSE = {
    "overflow_storm": ("non_finite",),
    "spike": ("non_finite", "explosion", "diverged", "clipping_stopped"),
    "explosion": ("non_finite", "spike", "diverged", "clipping_stopped"),
    "diverged": ("non_finite",),
    "vanishing": ("non_finite", "diverged", "dead_layer"),
    "dead_layer": ("non_finite",),
    "clip_saturation": ("non_finite", "spike", "explosion", "diverged"),
    "clipping_stopped": ("non_finite",),
    "no_learning": ("non_finite", "diverged"),
}
"""A rule stays silent while one of these alerted within the cool-down: it would tell the same story again."""


class Monitor:
    """Watches one run. Feed it the run's records in their order, from the first on or from a snapshot on.

    Memory is bounded: per layer `HealthConfig.window` float32 and some counters, whatever the number of steps.
    """

    def __init__(self, config: HealthConfig | None = None) -> None:
        self._config = HealthConfig() if config is None else config
        self._memory = Memory()
        self._layers: dict[int, Layers] = {}
        unknown = sorted(set(self._config.disabled) - set(RULES))
        if unknown:
            raise ValueError(f"health.disabled: no rule is called {unknown[0]!r}; there are: {', '.join(RULES)}")

    @classmethod
    def from_snapshot(cls, snapshot: bytes, config: HealthConfig | None = None) -> Monitor:
        """A monitor that goes on where `snapshot()` was taken. Raises `msgspec.DecodeError` on foreign bytes."""
        monitor = cls(config)
        monitor._memory = load(snapshot)
        for number_, state in monitor._memory.tables.items():
            monitor._layers[number_] = _derive(state.table)
        return monitor

    def snapshot(self) -> bytes:
        """All that is remembered, about 0.6 KB for each layer."""
        return dump(self._memory)

    def feed(self, record: AnyRecord) -> list[Alert]:
        """Take one record; the alerts it caused, usually none. Never raises on a readable record."""
        if isinstance(record, NormVector):
            return self._norms(record)
        if isinstance(record, Metrics):
            return self._metrics(record)
        if isinstance(record, SeriesTable):
            self._define(record)
        elif isinstance(record, RunFinished):
            return self._finish(record)
        elif isinstance(record, Params):
            self._params(record.params)
        elif isinstance(record, RunStarted):
            if record.attempt > 1:
                self._memory.signals.note(self._memory.clock, None, "resumed", "the run was resumed")
        elif isinstance(record, Snapshot):
            if not self._memory.clock:  # else it says again what is known; nothing changed
                self._params(record.params)
            for table in record.tables:
                if table.table not in self._memory.tables:
                    self._define(table)
        return []

    def feed_all(self, records: Iterable[AnyRecord]) -> Iterator[Alert]:
        """`feed` for each of `records`."""
        for record in records:
            yield from self.feed(record)

    # Records

    def _define(self, table: SeriesTable) -> None:
        if table.kind.partition("/")[0] != "gradients" or not table.names:
            return
        memory = self._memory
        known = memory.tables.get(table.table)
        if known is not None and known.table.names == table.names:
            return
        state = TableState.empty(table, self._config.window)
        heir = _ancestor(memory.tables, table)
        if heir is not None:
            before = memory.tables.pop(heir)
            self._layers.pop(heir, None)
            _inherit(state, before)
            if before.table.names != table.names:
                memory.signals.note(memory.clock, None, "layers", "the set of watched layers changed")
                # A resumed run may watch other layers on purpose; in mid-run only freezing takes layers away.
                if not any(
                    change.kind == "resumed" and change.clock == memory.clock for change in memory.signals.changes
                ):
                    state.lost = tuple(name for name in before.table.names if name not in set(table.names))
        while len(memory.tables) >= _MOST_TABLES:
            oldest = next(iter(memory.tables))
            del memory.tables[oldest]
            del self._layers[oldest]
        memory.tables[table.table] = state
        self._layers[table.table] = _derive(table)

    def _params(self, params: dict[str, Any]) -> None:
        memory = self._memory
        rate = rate_in(params)
        if rate is not None and memory.signals.rate_name is None:
            memory.signals.rate = rate
        if memory.clock:
            memory.signals.note(memory.clock, None, "params", "parameters were logged: " + ", ".join(list(params)[:5]))

    def _norms(self, record: NormVector) -> list[Alert]:
        memory, config = self._memory, self._config
        state = memory.tables.get(record.table)
        if state is None:
            return []
        layers = self._layers[record.table]
        values = unpack_values(record.values)
        if len(values) != len(layers.names):
            return []
        memory.clock += 1
        state.samples += 1
        present = None if record.present is None else unpack_mask(record.present, len(values))
        if record.skipped:
            found = _rule_overflow.check(state.skips, values, present, layers, config)
            return self._alerts(record, [found], state)
        sample = _sample(record, values, present, state)
        findings = [_rule_non_finite.check(state, sample, layers)]
        if state.infected:
            # Nothing else can be learned from this sample, and no window may hold it.
            return self._alerts(record, findings, state)
        _rule_overflow.note_success(state.skips)
        findings.append(_rule_clipping.check(state, sample, layers, config))
        if state.clipping.unclipped == 1:
            memory.signals.note(memory.clock, record.step, "clipping", "clipping stopped")
        findings.append(_rule_dead.check_lost(state, state.samples))
        if not state.table.partial:
            findings.append(_rule_dead.check_missing(state, sample, layers, config, self._allowed(_rule_dead.MISSING)))
        findings.append(_rule_dead.check_dead(state, sample, layers, config, self._allowed(_rule_dead.DEAD)))
        if sample.total > 0:
            findings.append(_rule_spike.check(state, sample, layers, config, memory.signals.loss))
            if state.armed:
                findings.append(
                    _rule_vanishing.check_collapse(state, sample, layers, config, self._allowed(_rule_vanishing.RULE))
                )
            self._remember(state, sample, layers, findings)
        return self._alerts(record, findings, state) if any(findings) else []

    def _remember(self, state: TableState, sample: Sample, layers: Layers, findings: list[Finding | None]) -> None:
        memory, config, window = self._memory, self._config, state.window
        window.push(sample.log, sample.valid)
        if window.count == _FIRST_SAMPLES:
            state.early = medians(window.recent(_FIRST_SAMPLES))
        if window.count % REFRESH == 0:
            window.refresh(config.sigma_floor)
            if window.count >= config.warm_up:
                _rule_spike.arm(state, config)
                state.armed = True
                learning = memory.signals.loss.falling
                findings.append(_rule_explosion.check(state, layers, config, learning))
        if _rule_vanishing.due(window.count):
            loss = memory.signals.loss
            # Late in a run a tiny level is trouble only if the loss is known not to be near its end.
            judge_level = window.count <= 20 or (loss.count > 0 and not loss.progressed)
            findings.append(_rule_vanishing.check(state, layers, config, judge_level))

    def _metrics(self, record: Metrics) -> list[Alert]:
        memory, config = self._memory, self._config
        signals = memory.signals
        if not memory.tables:
            memory.clock += 1
        if signals.rate_name is None or signals.rate_name not in record.values:
            found = find_learning_rate(record.values, config)
            if found is not None and signals.rate_name is None:
                signals.rate_name = found
        if signals.rate_name in record.values:
            signals.read_rate(record.values[signals.rate_name], memory.clock, record.step)
        if signals.loss_name is None:
            signals.loss_name = find_loss(record.values, config)
        value = None if signals.loss_name is None else record.values.get(signals.loss_name)
        if value is None:
            return []
        return self._loss(record, value)

    def _loss(self, record: Metrics, value: float) -> list[Alert]:
        config, loss = self._config, self._memory.signals.loss
        loss.step = record.step
        if not math.isfinite(value):
            if loss.infected:
                return []
            loss.infected = True
            evidence = {"origin": "loss", "loss": value}
            text = f"The loss is {value} in step {record.step}."
            return self._alerts(record, [Finding("non_finite", "error", "The loss is non-finite", text, (), evidence)])
        loss.infected = False
        loss.add(value)
        findings = [_rule_loss.check_diverged(loss, config)]
        if loss.count >= config.stuck_samples and loss.count % 50 == 0:
            findings.append(self._stuck(ended=False))
        return self._alerts(record, findings) if any(findings) else []

    def _finish(self, record: RunFinished) -> list[Alert]:
        finding = self._stuck(ended=True)
        step = self._memory.signals.loss.step
        return [] if finding is None or step is None else self._alerts_at(record.time_ns, step, [finding], None)

    def _stuck(self, *, ended: bool) -> Finding | None:
        state = self._latest()
        change = None if state is None else _norm_change(state)
        return _rule_loss.check_stuck(self._memory.signals.loss, self._config, change, ended=ended)

    def _latest(self) -> TableState | None:
        return next(reversed(self._memory.tables.values()), None)

    # Alerts

    def _alerts(
        self, record: NormVector | Metrics, findings: list[Finding | None], state: TableState | None = None
    ) -> list[Alert]:
        return self._alerts_at(record.time_ns, record.step, findings, state)

    def _alerts_at(
        self, time_ns: int, step: Step, findings: list[Finding | None], state: TableState | None
    ) -> list[Alert]:
        alerts = []
        for finding in sorted((f for f in findings if f is not None), key=lambda f: RULES.index(f.rule)):
            if self._allowed(finding.rule):
                alerts.append(self._alert(time_ns, step, finding, state))
        return alerts

    def _allowed(self, rule: str) -> bool:
        memory, config = self._memory, self._config
        if rule in config.disabled:
            return False
        if not memory.told_at:
            return True
        for told in (rule, *_SAME_CAUSE.get(rule, ())):
            at = memory.told_at.get(told)
            if at is not None and memory.clock - at < config.cool_down:
                return False
        return True

    def _alert(self, time_ns: int, step: Step, finding: Finding, state: TableState | None) -> Alert:
        memory = self._memory
        earlier = {rule: at for rule, at in memory.told_at.items() if memory.clock - at <= 2 * self._config.cool_down}
        memory.told_at[finding.rule] = memory.clock
        memory.alerted[finding.rule] = memory.alerted.get(finding.rule, 0) + 1
        state = self._latest() if state is None else state
        changes = memory.signals.lately(memory.clock)
        checks = advise(finding, self._circumstances(state))
        evidence = dict(finding.evidence)
        if state is not None and "/" in state.table.kind:
            evidence["model"] = state.table.kind.partition("/")[2]
        if memory.signals.rate is not None:
            evidence["learning_rate"] = memory.signals.rate
        if memory.signals.loss.recent:
            evidence.setdefault("loss", memory.signals.loss.recent[-1])
        if changes:
            evidence["changed_before"] = [_plain_change(change.step, change.text) for change in changes]
        if earlier:
            evidence["after"] = sorted(earlier, key=lambda rule: earlier[rule])
        evidence["check"] = list(checks)
        text = finding.text if not checks else f"{finding.text} Check first: " + " ".join(checks)
        return Alert(
            time_ns=time_ns,
            rule=finding.rule,
            step=step,
            severity=finding.severity,
            title=finding.title,
            text=text,
            layers=finding.layers[:_MOST_LAYERS],
            evidence=evidence,
        )

    def _circumstances(self, state: TableState | None) -> Circumstances:
        memory = self._memory
        growth, clipped, limit, skipping = 1.0, False, None, False
        if state is not None:
            window = state.window
            if window.count >= REFRESH:
                growth = math.exp(min(float(window.last[-1] - window.median[-1]), 700.0))
            clipped = _mostly_clipped(state) or any(c < 1.0 for c in state.clipping.coefficients[-10:])
            limit, skipping = state.clipping.max_norm, state.skips.history != 0
        return Circumstances(
            changes=memory.signals.lately(memory.clock),
            learning_rate=memory.signals.rate,
            clipped=clipped,
            max_norm=limit,
            growth=growth,
            skipping=skipping,
            samples=memory.clock,
            has_loss=memory.signals.loss.count > 0,
        )


def _derive(table: SeriesTable) -> Layers:
    return Layers(table.names, root_numel(table), depth_groups(table), weight_slots(table))


def _sample(
    record: NormVector, values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_] | None, state: TableState
) -> Sample:
    # `dot` and `count_nonzero` cost a tenth of `isfinite(...).all()` and `(... == 0).any()` on a few values.
    finite = math.isfinite(values.dot(values)) or bool(np.isfinite(values).all())
    zero: npt.NDArray[np.bool_] | None = None
    usable = present
    if np.count_nonzero(values) < len(values):
        zero = values == 0.0 if present is None else present & (values == 0.0)
        if np.count_nonzero(zero):
            usable = ~zero if present is None else present & ~zero
        else:
            zero = None
    total, norm_type = record.total, state.table.norm_type
    if state.table.partial:
        total = _total(_held(state, values, present), norm_type, None)
    elif total is None or (finite and not math.isfinite(total)):
        total = _total(values if present is None else values[present], norm_type, record.total)
    log = np.empty(len(values) + 1, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log(values if usable is None else np.where(usable, values, 1.0), out=log[:-1], casting="same_kind")
    log[-1] = math.log(total) if 0 < total < math.inf else 0.0
    valid = None if usable is None else np.append(usable, True)
    return Sample(
        step=record.step,
        values=values,
        present=present,
        total=total,
        log=log,
        valid=valid,
        zero=zero,
        clip_coefficient=record.clip_coefficient,
        max_norm=record.max_norm,
        post_clip=record.post_clip,
        finite=finite and math.isfinite(total),
    )


def _held(
    state: TableState, values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.float64]:
    """Each layer's last finite value, for a total that does not depend on whose turn it is."""
    if state.held is None:
        state.held = np.zeros(len(values))
    new = np.isfinite(values) if present is None else present & np.isfinite(values)
    state.held[new] = values[new]
    held: npt.NDArray[np.float64] = state.held
    return held


def _total(values: npt.NDArray[np.float64], norm_type: float, given: float | None) -> float:
    if given is not None and not np.isnan(given) and bool(np.isfinite(values).all()) and len(values):
        pass  # an overflow of the given total only: the layers are finite, so theirs counts
    elif given is not None:
        return given
    if not len(values):
        return 0.0
    if norm_type == math.inf:
        return float(values.max())
    if norm_type == 2.0:
        return math.sqrt(values.dot(values))
    return float((values**norm_type).sum() ** (1.0 / norm_type))


def _mostly_clipped(state: TableState) -> bool:
    recent = state.clipping.coefficients
    return len(recent) >= 20 and statistics.median(recent) < 1.0


def _norm_change(state: TableState) -> _rule_loss.NormChange | None:
    window = state.window
    if state.early is None or window.count < 2 * _FIRST_SAMPLES:
        return None
    now = medians(window.recent(min(window.filled, 64)))
    ratio = np.exp(np.clip((now - state.early).astype(np.float64), -700, 700))[:-1]
    ratio[state.zeros.now > 0] = 0.0
    return _rule_loss.NormChange(
        middle=float(np.median(ratio)),
        total_before=math.exp(float(state.early[-1])),
        total_now=math.exp(float(now[-1])),
        fallen=tuple(state.table.names[slot] for slot in np.argsort(ratio, kind="stable")[:_MOST_LAYERS]),
        mostly_clipped=_mostly_clipped(state),
    )


def _ancestor(tables: dict[int, TableState], table: SeriesTable) -> int | None:
    """The table that `table` continues: the same number, or the last of its kind with a layer in common."""
    if table.table in tables:
        return table.table
    names = set(table.names)
    for number_, state in reversed(tables.items()):
        if state.table.kind == table.kind and not names.isdisjoint(state.table.names):
            return number_
    return None


def _inherit(state: TableState, before: TableState) -> None:
    """Carry over what was learned of the layers that both tables have."""
    at = {name: slot for slot, name in enumerate(before.table.names)}
    pairs = [(slot, at[name]) for slot, name in enumerate(state.table.names) if name in at]
    if not pairs or before.window.ring.shape[1] != state.window.ring.shape[1]:
        return
    new = np.array([slot for slot, _ in pairs] + [len(state.table.names)])
    old = np.array([slot for _, slot in pairs] + [len(before.table.names)])
    for field in ("ring", "last", "seen", "median", "sigma", "high", "before", "between"):
        getattr(state.window, field)[new] = getattr(before.window, field)[old]
    state.window.count = before.window.count
    for theirs, ours in ((before.zeros, state.zeros), (before.absent, state.absent), (before.low, state.low)):
        _inherit_runs(ours, theirs, new[:-1], old[:-1])
    state.high[new], state.lone[new], state.floor[new[:-1]] = before.high[old], before.lone[old], before.floor[old[:-1]]
    state.clipping, state.skips = before.clipping, before.skips
    if before.early is not None:
        state.early = np.zeros(len(state.table.names) + 1, dtype=np.float32)
        state.early[new] = before.early[old]
    if before.held is not None:
        state.held = np.zeros(len(state.table.names))
        state.held[new[:-1]] = before.held[old[:-1]]
    state.samples, state.armed = before.samples, before.armed
    state.exploding, state.vanished_at = before.exploding, before.vanished_at


def _inherit_runs(ours: Runs, theirs: Runs, new: npt.NDArray[np.intp], old: npt.NDArray[np.intp]) -> None:
    for field in ("now", "longest", "ever", "told"):
        getattr(ours, field)[new] = getattr(theirs, field)[old]
    ours.live = bool(ours.now.any())


def _plain_change(step: Step | None, text: str) -> str:
    return text if step is None else f"step {number(float(step)) if isinstance(step, float) else step}: {text}"
