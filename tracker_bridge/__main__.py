"""`python -m tracker_bridge`: the same as the command `tracker-bridge`."""

from tracker_bridge.cli import main

if __name__ == "__main__":
    main()
