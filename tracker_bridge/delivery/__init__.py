"""Delivery: drains the journal into the adapters, in a process of its own or on a thread.

This package knows records, journal, run directory, configuration and the adapter contract. It never imports the
collector, torch or a tracker; an adapter's module is imported by name, and its SDK only when the adapter opens.
"""

from tracker_bridge.delivery._gone import is_gone
from tracker_bridge.delivery._host import Host
from tracker_bridge.delivery._lifecycle import Lifecycle
from tracker_bridge.delivery._plan import Plan, plan_of
from tracker_bridge.delivery._process import DeliveryProcess
from tracker_bridge.delivery._route import Route
from tracker_bridge.delivery._sync import deliver_once, pending_records, stored_plan, sync_run
from tracker_bridge.delivery._translate import Translator

__all__ = [
    "DeliveryProcess",
    "Host",
    "Lifecycle",
    "Plan",
    "Route",
    "Translator",
    "deliver_once",
    "is_gone",
    "pending_records",
    "plan_of",
    "stored_plan",
    "sync_run",
]
