"""`python -m tracker_bridge.launch [--config C] [--only NAME] script.py args...`: `tracker-bridge run` by itself."""

from __future__ import annotations

import sys

from tracker_bridge.errors import BridgeError
from tracker_bridge.launch import launch


def main(arguments: list[str]) -> None:
    """Take the options before the script's name, then become the script."""
    config, only = None, []
    while arguments and arguments[0] in ("--config", "--only"):
        option, value, *arguments = [*arguments, ""] if len(arguments) == 1 else arguments
        if option == "--config":
            config = value
        else:
            only.append(value)
    try:
        launch(arguments, config=config, only=only)
    except BridgeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
