"""Builds the modules in C (`*/_native.pyx`): into a wheel, or beside their sources for an editable installation.

Where there is no compiler the package is built without them; it does the same then, in Python.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "tracker_bridge"


class NativeModules(BuildHookInterface):
    """The build hook of this project, which Hatchling finds here."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what goes into the wheel."""
        self._place = Path(tempfile.mkdtemp(prefix="tracker_bridge-build-"))
        if os.environ.get("TRACKER_BRIDGE_NO_EXTENSIONS", "0") not in ("", "0"):
            return
        root = Path(self.root)
        try:
            built = compile_all(root, self._place)
        except (Exception, SystemExit) as error:  # no compiler, or one that fails: setuptools says it in many ways
            self.app.display_warning(f"built without the modules in C, for there is no working compiler: {error}")
            return
        if version == "editable":
            for module, file in built.items():
                shutil.copyfile(file, root / module)
        else:
            build_data["force_include"].update({str(file): module for module, file in built.items()})
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has now."""
        shutil.rmtree(self._place, ignore_errors=True)


def compile_all(root: Path, place: Path) -> dict[str, Path]:
    """What was built in the folder `place`, by its path below `root`. Raises what setuptools and Cython raise."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    flags = [] if sys.platform == "win32" else ["-O3", "-fno-strict-aliasing"]
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = [
            Extension(
                ".".join(source.with_suffix("").parts),
                [str(source)],
                include_dirs=[str(root / source.parent)],
                extra_compile_args=flags,
            )
            for source in sorted(Path(PACKAGE).rglob("_native.pyx"))
        ]
        made = cythonize(extensions, build_dir=str(place / "c"), quiet=True)
        command = build_ext(Distribution({"name": PACKAGE, "ext_modules": made}))
        command.build_lib, command.build_temp = str(place / "lib"), str(place / "objects")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return {str(path.relative_to(place / "lib")): path for path in (place / "lib").rglob("_native.*")}
