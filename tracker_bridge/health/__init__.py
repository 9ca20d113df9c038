"""Health rules: alerts from the record stream, on the delivery side or offline. Imports records and numpy, no torch."""

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._monitor import RULES, Monitor

__all__ = ["RULES", "HealthConfig", "Monitor"]
