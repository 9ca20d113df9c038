"""Whether somebody has removed a run's directory while the run was going on."""

from __future__ import annotations

from tracker_bridge.rundir import RunPaths


def is_gone(paths: RunPaths) -> bool:
    """True if there is no `run.json` any more; False also where nobody can tell (a file server is silent)."""
    try:
        paths.manifest.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
