"""Each test of the journal runs twice: with the shortcut in C, and with every append in Python."""

from __future__ import annotations

import pytest

from tracker_bridge._extensions import NO_EXTENSIONS
from tracker_bridge.journal import _writer
from tracker_bridge.journal._tail import PythonTail, Tail


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both ways. (A `unittest.TestCase` comes without, and goes the first.)"""
    metafunc.parametrize("way", ["in C", "in Python"], indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records are appended, in this process and in those that the test starts."""
    chosen = str(getattr(request, "param", "in C"))
    if chosen == "in Python":
        monkeypatch.setattr(_writer, "Tail", PythonTail)
        monkeypatch.setenv(NO_EXTENSIONS, "1")
    elif Tail is PythonTail:
        pytest.skip("the modules in C are not built")
    return chosen
