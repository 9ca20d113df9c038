"""`neptune_scale.projects`: there is no workspace to ask, so a project is a name and nothing else."""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import unsupported
from tracker_bridge.compat._coverage import say_once

__all__ = ["create_project", "list_projects"]


def create_project(
    name: str,
    *,
    workspace: str | None = None,
    visibility: str = "priv",
    description: str | None = None,
    key: str | None = None,
    fail_if_exists: bool = False,
    api_token: str | None = None,
) -> str:
    """`workspace/name`; trackers make their projects when the first run gets there. Raises `ValueError` as Neptune."""
    del visibility, description, key, fail_if_exists, api_token
    inner, slash, last = name.rpartition("/")
    if slash and workspace and inner != workspace:
        raise ValueError(f"the workspace {workspace!r} is not that of the name {name!r}")
    if not slash and not workspace:
        raise ValueError("create_project needs a workspace, in `workspace` or in the name: workspace/project")
    say_once("neptune_scale: projects.create_project: nothing is created; trackers make projects as runs arrive")
    return f"{workspace or inner}/{last}"


list_projects: Any = unsupported("neptune_scale", "projects.list_projects")
