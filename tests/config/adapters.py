"""Adapters for the configuration tests: options of every kind, and an SDK that nobody has."""

from __future__ import annotations

from typing import Any, Literal, Union

import msgspec

from tracker_bridge.adapter import Adapter, Batch, Capabilities, Opened, Options, Requirement, RunInfo


class AlphaOptions(Options, frozen=True, kw_only=True):
    """Options of the kinds that the built-in adapters have."""

    mode: Literal["online", "offline"] = "online"
    api_key: Union[str, None] = None
    tracking_uri: str = ""
    port: int = 1
    ratio: float = 0.5
    verbose: bool = False
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    labels: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.port == 13:
            raise ValueError(f"port 13 is taken at {self.tracking_uri}")


class BetaOptions(Options, frozen=True, kw_only=True):
    """One option that has to be given."""

    entity: str


class _Silent(Adapter[Any]):
    capabilities = Capabilities()

    def open(self, run: RunInfo) -> Opened:
        return Opened()

    def write(self, batch: Batch) -> None:
        pass

    def close(self, status: str | None) -> None:
        pass


class AlphaAdapter(_Silent):
    options_type = AlphaOptions


class BetaAdapter(_Silent):
    options_type = BetaOptions


class AbsentAdapter(_Silent):
    options_type = AlphaOptions
    requires = (Requirement(module="no_such_sdk_anywhere", install="tracker-bridge[absent]"),)
