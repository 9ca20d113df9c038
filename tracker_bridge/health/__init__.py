"""Health rules: alerts from the record stream, on the delivery side or offline. Imports records and numpy, no torch."""

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._monitor import RULES, Monitor
from tracker_bridge.health._signals import find_learning_rate, find_loss

__all__ = ["RULES", "HealthConfig", "Monitor", "find_learning_rate", "find_loss"]
