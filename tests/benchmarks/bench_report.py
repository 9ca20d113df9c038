"""How large a report is and how long a browser needs to open it: 300 layers x 10,000 steps, spike, NaN and all.

    python tests/benchmarks/bench_report.py [--layers N] [--steps N] [--rounds N]

Needs Chromium and its driver. Each round starts a browser with an empty profile. `first view`: from the request until
the map with the total norm and the loss under it is drawn; `all`: until the charts and tables below it are as well. An
empty page, opened in turns with it, is the price of the browser itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.report.runs import training, write_run
from tracker_bridge.report import read_story, write_report

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1800")


def opened(page: Path, marks: tuple[str, ...]) -> list[float]:
    """Seconds until each of the document's `data-<mark>` is `yes`."""
    with tempfile.TemporaryDirectory() as profile:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.get("about:blank")
            start, taken = time.perf_counter(), []
            driver.get(page.as_uri())
            for mark in marks:
                while not driver.execute_script(f"return document.documentElement.dataset.{mark} === 'yes'"):
                    time.sleep(0.01)
                taken.append(time.perf_counter() - start)
            return taken
        finally:
            driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = training(arguments.layers, arguments.steps, spike_at=7000, nan_at=9000, max_norm=3.0, skipped=(50,))
        run = write_run(Path(folder, "run"), records)
        start = time.perf_counter()
        story = read_story(run)
        read = time.perf_counter() - start
        report = write_report([story], Path(folder, "report.html"))
        written = time.perf_counter() - start - read
        print(f"read {read:.2f} s, written {written:.2f} s, {report.stat().st_size / 1e6:.2f} MB")
        empty = Path(folder, "empty.html")
        empty.write_text('<!doctype html><html data-ready="yes"></html>')
        first, whole, nothing = [], [], []
        for _ in range(arguments.rounds):
            nothing += opened(empty, ("ready",))
            one, two = opened(report, ("ready", "complete"))
            first.append(one)
            whole.append(two)
    for name, values in (("empty page", nothing), ("first view", first), ("all", whole)):
        print(f"{name}: median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
