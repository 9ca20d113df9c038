"""The configuration of a run: reading it from wherever it stands, checking it, and keeping its secrets in.

This package reads the configuration's file and the environment, and imports adapters' classes to check their options;
it imports no SDK and writes nothing.
"""

from tracker_bridge.config._load import (
    DEFAULT_BACKENDS,
    DEFAULT_QUEUE_DIR,
    load_config,
    locate_queue,
    restore,
    secret_environ,
)
from tracker_bridge.config._secrets import HIDDEN, hide_secrets, is_secret_key, redact, scrub, scrub_data, secret_values
from tracker_bridge.config._text import describe_type, unknown
from tracker_bridge.config._types import (
    BackendConfig,
    Config,
    DeliveryConfig,
    GradientsConfig,
    Grouping,
    Part,
    QueueConfig,
    RouteConfig,
)
from tracker_bridge.errors import ConfigError

__all__ = [
    "DEFAULT_BACKENDS",
    "DEFAULT_QUEUE_DIR",
    "HIDDEN",
    "BackendConfig",
    "Config",
    "ConfigError",
    "DeliveryConfig",
    "GradientsConfig",
    "Grouping",
    "Part",
    "QueueConfig",
    "RouteConfig",
    "describe_type",
    "hide_secrets",
    "is_secret_key",
    "load_config",
    "locate_queue",
    "redact",
    "restore",
    "scrub",
    "scrub_data",
    "secret_environ",
    "secret_values",
    "unknown",
]
