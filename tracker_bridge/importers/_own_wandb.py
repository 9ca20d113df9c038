"""What the bridge's own W&B adapter writes for things that W&B has no place for, turned back."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

OWN_NAMES = "tracker_bridge_names"
"""The config key with W&B's name -> original of series whose name had to be changed."""
OWN_STATUS = "tracker_bridge_status"
"""The summary key with the status; W&B itself knows only an exit code."""

_PAGE = re.compile(r'<meta charset="utf-8"><pre style="white-space: pre-wrap">(.*)</pre>\Z', re.DOTALL)
_LARGEST = 64 << 20


def names_of(path: tuple[str, ...], value: Any) -> dict[str, str]:
    """The names in a config item, whether it came whole or as one nested key."""
    if len(path) == 1 and isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    return {path[1]: str(value)} if len(path) == 2 else {}


def text_of(page: Path | None) -> str | None:
    """The text in a page that the adapter made of a text; None if it is another file."""
    if page is None or page.suffix != ".html" or page.stat().st_size > _LARGEST:
        return None
    # As bytes: reading as text would change the line ends of the text in it.
    match = _PAGE.match(page.read_bytes().decode("utf-8", "replace"))
    return html.unescape(match[1]) if match else None
