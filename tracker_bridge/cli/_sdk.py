"""Versions of installed distributions and of the SDKs behind adapters, from package metadata; imports none of them."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from tracker_bridge.adapter import Adapter, Requirement
from tracker_bridge.registry import missing_requirements


def distribution_version(name: str) -> str | None:
    """The version of the distribution called `name`, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_version(module: str) -> str | None:
    """The version of the distribution that brings the module."""
    top = module.partition(".")[0]
    # By name first: looking into the file lists of every distribution takes as long as everything else together.
    direct = distribution_version(top.replace("_", "-"))
    if direct is not None:
        return direct
    owners = importlib.metadata.packages_distributions().get(top)
    return importlib.metadata.version(owners[0]) if owners else None


def requirements(cls: type[Adapter[Any]]) -> list[tuple[Requirement, str | None]]:
    """What the adapter needs, each with its version here, None if it is missing."""
    missing = missing_requirements(cls)
    return [
        (requirement, None if requirement in missing else (module_version(requirement.module) or "unknown version"))
        for requirement in cls.requires
    ]


def install_command(wanted: list[Requirement]) -> str:
    """The command that installs the requirements."""
    names = dict.fromkeys(requirement.install for requirement in wanted)
    return "pip install " + " ".join(f'"{name}"' for name in names)
