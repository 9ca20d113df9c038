"""A process that imports one run after another: requests on standard input, outcomes on standard output.

Started as a script by `_tree`, not by multiprocessing, which would run the caller's own script again; and its folder
is taken off the path, as is the working directory, which may hold anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    # Ctrl-C goes to all processes of the terminal; what it should end here is a run, not the imports below.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec

from tracker_bridge.importers._journal import import_staged, outcome_of
from tracker_bridge.importers._model import ForeignRun
from tracker_bridge.importers._staging import Staging


class Request(msgspec.Struct, frozen=True):
    """One run to import. `queue_dir` is the same in all requests to a process."""

    run: ForeignRun
    queue_dir: str
    salvage: bool


def pack(request: Request) -> bytes:
    """The request as one line. A path may hold half a character, which the standard library's JSON keeps."""
    return json.dumps(msgspec.to_builtins(request)).encode("ascii")


def unpack(line: bytes) -> Request:
    """What `pack` was given."""
    return msgspec.convert(json.loads(line), Request)


def serve() -> None:
    """Answer each line with a line until the input ends."""
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints must not get between the answers
    with contextlib.ExitStack() as stack:
        staging: Staging | None = None
        for line in sys.stdin.buffer:
            request = unpack(line)
            if staging is None:
                staging = stack.enter_context(Staging(Path(request.queue_dir)))
            try:
                outcome = import_staged(request.run, staging, salvage=request.salvage)
            except OSError as error:
                outcome = outcome_of(request.run, "failed", why=str(error))
            answers.write(msgspec.json.encode(outcome) + b"\n")
            answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        serve()
    except (KeyboardInterrupt, BrokenPipeError):
        # Whoever asked is gone or going; nobody reads an answer, and a traceback would end up in the user's shell.
        os._exit(130)
