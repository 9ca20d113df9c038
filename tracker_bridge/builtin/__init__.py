"""Adapters that need no tracker: for scripts, tests and terminals."""
