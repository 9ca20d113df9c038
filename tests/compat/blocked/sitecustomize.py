"""Makes a tracker's SDK un-importable in the script's own process (`BLOCKED_SDK`), though it seems to be installed."""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec


class _Refusing(Loader):
    def create_module(self, spec):
        raise ImportError(f"the real {spec.name} is imported by a script that must not need it")

    def exec_module(self, module):
        raise AssertionError


class _Blocker(MetaPathFinder):
    def __init__(self, names):
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in self.names:
            return ModuleSpec(fullname, _Refusing(), origin="blocked")
        return None


if os.environ.get("BLOCKED_SDK") and "tracker_bridge.delivery" not in sys.orig_argv:
    # Where the SDK would be found otherwise.
    sys.meta_path.insert(len(sys.meta_path) - 1, _Blocker(os.environ["BLOCKED_SDK"].split(",")))
