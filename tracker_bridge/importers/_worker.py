"""A process that imports one run after another: requests on standard input, outcomes on standard output.

Started as a script by `_tree`, not by multiprocessing, which would run the caller's own script again; and its folder
is taken off the path, as is the working directory, which may hold anything.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec

from tracker_bridge.importers._journal import import_staged
from tracker_bridge.importers._model import ForeignRun
from tracker_bridge.importers._staging import Staging


class Request(msgspec.Struct, frozen=True):
    """One run to import. `queue_dir` is the same in all requests to a process."""

    run: ForeignRun
    queue_dir: str
    salvage: bool


def serve() -> None:
    """Answer each line with a line until the input ends."""
    decoder = msgspec.json.Decoder(Request)
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints must not get between the answers
    with contextlib.ExitStack() as stack:
        staging: Staging | None = None
        for line in sys.stdin.buffer:
            request = decoder.decode(line)
            if staging is None:
                staging = stack.enter_context(Staging(Path(request.queue_dir)))
            outcome = import_staged(request.run, staging, salvage=request.salvage)
            answers.write(msgspec.json.encode(outcome) + b"\n")
            answers.flush()


if __name__ == "__main__":
    serve()
