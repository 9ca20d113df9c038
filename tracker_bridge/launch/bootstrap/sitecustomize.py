"""Found by Python's `site` before a script that `tracker-bridge run` starts. Undoes what led here, then prepares.

The environment's own `sitecustomize`, if there is one, is run as if this one were not there.
"""

import importlib
import json
import os
import sys


def _prepare() -> None:
    told = json.loads(os.environ.pop("_TRACKER_BRIDGE_LAUNCH"))
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)
    if told["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = told["pythonpath"]
    from tracker_bridge.launch._start import start

    start(told)


def _run_own() -> None:
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if "_TRACKER_BRIDGE_LAUNCH" in os.environ:
    try:
        _prepare()
    except Exception as error:
        # `site` would print this and go on, and the script would log to the real tracker.
        sys.stderr.write(f"tracker_bridge: the script was not started: {type(error).__name__}: {error}\n")
        os._exit(2)
    _run_own()
