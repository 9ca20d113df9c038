"""The thresholds of the rules, each with the reason for its default. Pure data."""

from __future__ import annotations

from typing import Union

import msgspec


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the rules judge. Lengths count *samples* (recorded norm vectors), not optimizer steps.

    `loss` and `learning_rate` name the logged series to read; None: recognised by the usual names. `disabled` names
    rules that never alert (see `RULES`).
    """

    loss: Union[str, None] = None
    learning_rate: Union[str, None] = None
    disabled: tuple[str, ...] = ()

    window: int = 128
    """Samples that form a layer's baseline (the median and MAD of its log norm). OLMo-core uses the same length."""
    warm_up: int = 64
    """Samples before a baseline is trusted."""
    cool_down: int = 50
    """Samples between two alerts of one rule."""
    sigma_floor: float = 0.02
    """Least spread of a log norm, so that a constant series does not make every change an outlier."""

    spike_sigmas: float = 8.0
    spike_ratio: float = 5.0
    """A spike of the total is this far above its median in robust sigmas and as a factor. Six sigmas and a factor of 2
    gave 3 false alarms in 10,000 samples of heavy-tailed noise; real training has tails as heavy."""
    layer_spike_sigmas: float = 8.0
    layer_spike_ratio: float = 10.0
    layer_spike_least: int = 3
    """A spike of single layers needs this many of them (and 2% of all) at once."""
    layer_spike_share: float = 0.3
    """... and each of them this share of the total norm."""
    lone_spike_sigmas: float = 16.0
    lone_spike_ratio: float = 30.0
    """... or one layer that is this far out."""
    record_ratio: float = 1.5
    """A spike also exceeds the window's 92nd percentile by this factor: what happens often is no news."""
    early_spike_ratio: float = 1000.0
    """Before `warm_up`: factor over everything seen so far."""

    explosion_ratio: float = 10.0
    """Median of the last 16 samples over the baseline before them."""
    explosion_ratio_learning: float = 100.0
    """The same while the loss is still falling: growing gradients are then part of learning."""

    vanishing_depth_ratio: float = 1e-4
    """First over last layer of like kind, from a line fitted to the log of RMS = norm / sqrt(numel) over depth."""
    vanishing_correlation: float = 0.8
    """How well that line must fit (Pearson)."""
    vanishing_rms: float = 1e-8
    """RMS below which Adam's epsilon (1e-8) outweighs a gradient."""
    collapse_ratio: float = 1e-3
    """A layer below this part of its own baseline, for `collapse_samples`, while the total keeps more than 100 times
    that part of its own."""
    collapse_samples: int = 5

    dead_samples: int = 5
    """Samples of exact zeros in a layer that had gradient before."""
    never_alive_samples: int = 20
    """Samples of exact zeros in a layer that never had any: LoRA's A is zero as long as B is."""
    missing_samples: int = 5
    """Samples without gradient (`grad is None`) in a layer that had one before."""
    never_present_samples: int = 20

    skips_in_a_row: int = 5
    """Overflow-skipped steps in a row, once a step has succeeded."""
    skips_at_start: int = 20
    """The same before any step has succeeded: the search for a loss scale may halve it many times."""
    skips_share: float = 0.25
    """Share of skipped steps among the last 64."""

    clipped_share: float = 0.9
    clipped_samples: int = 100
    clipped_coefficient: float = 0.5
    """Clipping saturates when this share of samples is clipped, with a median coefficient below this."""

    diverged_ratio: float = 4.0
    """The loss stays above this many times its value at the start, for `diverged_samples` values."""
    diverged_at_once: float = 100.0
    """The same while there are fewer than 20 values, over the first value."""
    diverged_sigmas: float = 4.0
    """... and in robust sigmas of the log of the values since: with small batches one low value proves little."""
    diverged_samples: int = 5
    stuck_samples: int = 1000
    """Values of the loss without progress since the start before it is called stuck while the run goes on."""
    stuck_at_end: int = 100
    """The same when the run ends."""
    withered_ratio: float = 0.3
    """... if by then the median layer's norm is below this part of what it was in the first samples."""
    stuck_gain: float = 0.05
    """Progress smaller than this share of the first loss is none."""
