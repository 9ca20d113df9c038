"""`tracker-bridge sync` towards servers that answer nonsense or nothing: it says what it waits for, and ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import scripts
from tests.cli.conftest import EXPECTED_LOSSES, MakeRun, Program, losses
from tests.cli.test_status_and_sync import on_terminal
from tests.waiting import until


@contextmanager
def server(status: int, body: str) -> Iterator[str]:
    """Answers whatever it is asked with one page; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            page = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


ANSWERS = [(200, "<!DOCTYPE html><html><h1>Welcome to the portal</h1></html>"), (500, "<html>Internal trouble</html>")]


@pytest.mark.parametrize(("status", "body"), ANSWERS, ids=["html", "500"])
def test_nonsense_ends_early_and_says_why(
    program: Program, make_run: MakeRun, tmp_path: Path, status: int, body: str
) -> None:
    """State and last error while it waits, the end after `--patience`, exit status 1; the other backend is complete."""
    with server(status, body) as url:
        make_run("r", {"mlflow": {"tracking_uri": url}, "jsonl": {}})
        begun = time.monotonic()
        done = program("sync", "r", "--patience", "15", "--timeout", "80")
        assert time.monotonic() - begun < 60
    assert done.code == 1
    assert "r > mlflow: retrying, 21 records left: " in done.err
    assert "r > jsonl" not in done.err
    assert "no backend got anything done for 15 s (--patience)" in done.out
    assert losses(tmp_path / "r.jsonl") == EXPECTED_LOSSES
    until(lambda: not scripts.processes_of(tmp_path), 8, "no process stays behind")
    assert program("status", "r", "--json").json["runs"][0]["backends"][0]["pending"] == 21


def test_a_server_that_never_answers_ends_early_too(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """It accepts and says nothing, so no error comes either: patience counts from the start."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        make_run("r", {"mlflow": {"tracking_uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}})
        begun = time.monotonic()
        done = program("sync", "--patience", "4", "--timeout", "80", "--json")
        assert time.monotonic() - begun < 30
    assert done.code == 1
    (outcome,) = done.json["runs"]
    assert outcome["gave_up"] == "no backend got anything done for 4 s (--patience)"
    assert (outcome["complete"], outcome["run"]["backends"][0]["pending"]) == (False, 21)
    until(lambda: not scripts.processes_of(tmp_path), 8, "no process stays behind")


def test_on_a_terminal_the_progress_shows_state_and_error(make_run: MakeRun, tmp_path: Path) -> None:
    """The bar of a backend in trouble has its state and its last error beside it."""
    with server(500, "<html>Internal trouble</html>") as url:
        make_run("r", {"mlflow": {"tracking_uri": url}})
        shown = on_terminal(["sync", "--patience", "15", "--timeout", "80"], tmp_path)
    assert "r > mlflow" in shown
    assert "retrying: " in shown
