"""What a host has to deliver: the backends with their options.

It holds secrets, so it goes through a pipe, never through a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter
from tracker_bridge.config import BackendConfig, Config, RouteConfig, scrub, secret_values
from tracker_bridge.delivery._route import Route
from tracker_bridge.health import HealthConfig
from tracker_bridge.registry import adapter_class


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of one run, how long their end may take (seconds), and the health rules that judge it.

    `health` None: nothing new is judged; alerts that were kept go to the backends all the same. `beside`: the backends
    are targets of a replay, which may run while the run's own are delivered to.
    """

    backends: tuple[BackendConfig, ...]
    group_by: str = "parameter"
    close_timeout: float = 60.0
    health: HealthConfig | None = None
    secrets: tuple[str, ...] = ()
    beside: bool = False

    @property
    def scrubber(self) -> Callable[[str], str]:
        """Removes the secrets from a text."""
        secrets = frozenset(self.secrets)
        return lambda text: scrub(text, secrets)


def plan_of(config: Config, environ: dict[str, str]) -> Plan:
    """The plan that `config` asks for."""
    return Plan(
        backends=config.backends,
        group_by=config.gradients.group_by if config.gradients else "parameter",
        close_timeout=config.delivery.close_timeout,
        health=config.health,
        secrets=tuple(sorted(secret_values(config, environ))),
    )


def make_adapter(backend: BackendConfig) -> Adapter[Any]:
    """The adapter of `backend`, not yet open. Raises `ConfigError` and `msgspec.ValidationError`."""
    kind = adapter_class(backend.adapter)
    return kind(msgspec.convert(backend.options, kind.options_type))


def make_route(route: RouteConfig, group_by: str) -> Route:
    """The backend's route; `group_by` is what holds where neither the route nor the script says."""
    return Route(
        include=route.include,
        exclude=route.exclude,
        every_n_steps=route.every_n_steps,
        group_by=route.group_by,
        default_group_by=group_by,
        prefix=route.prefix,
        rename=route.rename,
    )
