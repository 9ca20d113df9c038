"""The report in a real browser: it draws, it answers the mouse, and nothing of a stranger's journal runs in it.

Needs Chromium and its driver (Debian: `chromium`, `chromium-driver`). `TRACKER_BRIDGE_SCREENSHOTS` names a folder in
which the screenshots stay.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.runs import HOSTILE, hostile_records, names_of, training, write_run
from tracker_bridge.report import read_story, write_report

webdriver = pytest.importorskip("selenium.webdriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
    ),
]


class Page:
    """A report in Chromium."""

    def __init__(self, driver: Any, screenshots: Path) -> None:
        self.driver, self.screenshots = driver, screenshots

    def open(self, path: Path) -> None:
        """Load a report and wait until it is drawn."""
        self.driver.get(path.as_uri())
        self.wait("document.documentElement.dataset.complete === 'yes'")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(f"return {condition}")
        )

    def run(self, script: str) -> Any:
        """The value of a JavaScript function body."""
        return self.driver.execute_script(script)

    def text(self, identity: str) -> str:
        """The visible text of an element."""
        return self.driver.find_element("id", identity).text

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a place of the map, in parts of its width and height; click there."""
        from selenium.webdriver.common.action_chains import ActionChains

        area = self.driver.find_element("css selector", "#map .draglayer .xy .nsewdrag")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
        moves = ActionChains(self.driver)
        for shift in (-3, 0):  # a pointer that arrives, not one that was always there
            moves.move_to_element_with_offset(
                area, int((x - 0.5) * area.rect["width"]) + shift, int((y - 0.5) * area.rect["height"])
            )
        (moves.click() if click else moves).perform()

    def shot(self, name: str) -> bytes:
        """A screenshot of the window."""
        path = self.screenshots / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path.read_bytes()

    def log(self) -> list[str]:
        """What the browser complained about."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A browser of its own."""
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1800")
    for flag in (*flags, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    screenshots = Path(os.environ.get("TRACKER_BRIDGE_SCREENSHOTS", tmp_path))
    try:
        yield Page(driver, screenshots)
    finally:
        driver.quit()


HEAT = "document.getElementById('map')"


def test_a_report_draws_and_answers(page: Page, tmp_path: Path):
    """Map, norms, loss, alerts, depth and table are there; hover, click, zoom, sort, filter and the dark theme work."""
    steps = 3000
    run = write_run(
        tmp_path / "run", training(60, steps, spike_at=2000, nan_at=2500, max_norm=3.0, skipped=(50,)), name="a run"
    )
    page.open(write_report([read_story(run)], tmp_path / "report.html"))
    assert page.text("title") == "a run"
    assert "non_finite at step 2500" in page.text("alerts")
    traces = page.run(f"return {HEAT}.data.map((t) => t.name || t.type)")
    assert {"heatmap", "total norm", "clip threshold", "skipped step", "non-finite", "train/loss", "alert"} <= set(
        traces
    )
    light = page.shot("report-light")
    assert len(light) > 50_000

    # The spike survives although three samples share a cell.
    tallest = page.run(f"return Math.max(...{HEAT}.data.find((t) => t.name === 'total norm').y)")
    assert tallest > 500
    width = page.run(f"return {HEAT}.data[0].x.length")
    assert width < steps

    # What lies under the mouse is said in words; a click shows that step by depth.
    page.point(0.5, 7.5 / 60)
    page.wait("document.getElementById('hover').textContent.startsWith('model.encoder')")
    assert page.text("hover").startswith(names_of(60)[7])
    page.point(0.5, 0.5, click=True)
    page.wait("/^steps? 1[45]/.test(document.getElementById('at').textContent)")

    # Zoom: fewer steps, as fine as the data is.
    page.run(f"Plotly.relayout({HEAT}, {{'xaxis.range[0]': 1990, 'xaxis.range[1]': 2010}})")
    page.wait(f"{HEAT}.data[0].x.length <= 22")
    page.wait(f"{HEAT}.data[0].x.includes(2000)")
    page.run("document.getElementById('reset').click()")
    page.wait(f"{HEAT}.data[0].x.length > 100")

    # A click on an alert's button shows its step by depth.
    page.run("[...document.querySelectorAll('#alerts button')][1].click()")
    page.wait("document.getElementById('at').textContent.startsWith('step 2500')")
    odd = page.run("return document.getElementById('depth').data.find((t) => t.name === 'zero or non-finite').x.length")
    assert odd == 30

    # The table sorts and filters.
    page.run("document.querySelectorAll('#layers th button')[4].click()")
    page.wait("document.querySelectorAll('#layers th button')[4].textContent.includes('↓')")
    largest = page.run(
        "return [...document.querySelectorAll('#layers tbody tr')].map((r) => parseFloat(r.cells[4].textContent))"
    )
    assert largest == sorted(largest, reverse=True)
    box = page.driver.find_element("id", "filter")
    box.send_keys("layer.3.")
    page.wait("document.querySelectorAll('#layers tbody tr').length === 6")

    page.driver.find_element("id", "theme").click()
    page.wait("document.documentElement.dataset.theme === 'dark'")
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert page.shot("report-dark") != light
    assert page.log() == []


def test_a_small_window_loses_no_spike(page: Page, tmp_path: Path):
    """However narrow the window, no two cells share a pixel, and the single bad step is still among the cells."""
    run = write_run(tmp_path / "run", training(60, 4000, nan_at=2501))
    report = write_report([read_story(run)], tmp_path / "report.html")
    for width in (1400, 500):
        page.driver.set_window_size(width, 1200)
        page.open(report)
        cells = page.run(f"return {HEAT}.data[0].x.length")
        assert cells <= page.run(f"return {HEAT}._fullLayout.xaxis._length")
        odd = page.run(f"return {HEAT}.data[1].z.map((row) => row.includes(1))")
        assert odd[:30] == [True] * 30
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    page.driver.set_window_size(1400, 1200)
    page.wait(f"{HEAT}.data[0].x.length > {2 * cells}")
    assert page.log() == []


def test_colour_modes(page: Page, tmp_path: Path):
    """RMS and relative colours change the map; the smallest of each bin shows dips."""
    run = write_run(tmp_path / "run", training(30, 400, spike_at=300))
    page.open(write_report([read_story(run)], tmp_path / "report.html"))
    before = page.run(f"return {HEAT}.data[0].z[4][10]")
    for value in ("rms", "own"):
        page.run(
            f"const s = document.getElementById('colour'); s.value = '{value}'; s.dispatchEvent(new Event('change'))"
        )
        page.wait(f"Math.abs({HEAT}.data[0].z[4][10] - ({before})) > 0.1")
    assert abs(page.run(f"return {HEAT}.data[0].z[4][200]")) < 1
    assert page.log() == []


def test_a_stranger_s_journal_is_text(page: Page, tmp_path: Path):
    """Markup, script, Plotly's own markup and escapes show as text wherever they are; nothing runs, nothing loads."""
    run = write_run(tmp_path / "run", hostile_records(), name=HOSTILE[0], project=HOSTILE[1], experiment=HOSTILE[3])
    other = write_run(tmp_path / "other", training(12, 100), name=HOSTILE[1])
    for stories in ([read_story(run)], [read_story(run), read_story(other)]):
        page.open(write_report(stories, tmp_path / "report.html"))
        page.point(0.2, 1.5 / 10)
        page.wait("document.getElementById('hover').textContent.includes('onerror')")
        page.run("Plotly.Fx.hover(document.getElementById('depth'), [{curveNumber: 1, pointNumber: 3}])")
        assert page.run("return window.pwned") is None
        assert page.run("return document.querySelectorAll('img, main a[href], iframe').length") == 0
        drawn = page.run(
            "return [...document.querySelectorAll('#map .ytick text')].map((t) => t.textContent).join('\\n')"
        )
        assert "<img src=x onerror=window.pwned=1>" in drawn
        assert "<b>bold</b>&lt;i&gt;" in drawn
        assert page.run("return document.querySelectorAll('#map .ytick text tspan[style*=bold]').length") == 0
        assert (
            page.run(
                "return performance.getEntriesByType('resource').filter((r) => /^(http|file)/.test(r.name)).length"
            )
            == 0
        )
        assert page.log() == []
    assert page.text("layers").count("<script>window.pwned=1</script>") >= 1
    page.shot("report-hostile")


def test_the_policy_holds(page: Page, tmp_path: Path):
    """Even a script or an image that did get into the page is refused by the policy."""
    run = write_run(tmp_path / "run", training(6, 30))
    page.open(write_report([read_story(run)], tmp_path / "report.html"))
    page.run("const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s)")
    page.run(
        "const d = document.createElement('div'); document.body.append(d);"
        "d.innerHTML = '<img src=http://127.0.0.1:9/x onerror=window.pwned=2>'"
    )
    page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused').then((r) => { window.answer = r; })")
    page.wait("window.answer")
    assert page.run("return window.answer") == "refused"
    assert page.run("return window.pwned") is None
    complaints = " ".join(page.log())
    assert complaints.count("Content Security Policy") >= 3


def test_comparison(page: Page, tmp_path: Path):
    """Several runs: a table of what differs and what was found, both curves, and a tab for each run."""
    runs = [
        write_run(tmp_path / name, training(24, 400, seed=seed, rate=rate, nan_at=at), name=name)
        for name, seed, rate, at in (("first", 0, 1e-3, 300), ("second", 1, 3e-4, None))
    ]
    page.open(write_report([read_story(run) for run in runs], tmp_path / "report.html"))
    table = page.text("runs")
    assert "learning_rate" in table
    assert "0.0003" in table
    assert "No trouble found" in table
    assert len(page.run("return document.getElementById('compare').data")) == 4
    page.shot("report-comparison")
    page.run("[...document.querySelectorAll('#tabs button')][1].click()")
    page.wait("document.getElementById('verdict').textContent === 'No trouble found'")
    page.wait(f"!{HEAT}.data.some((t) => t.name === 'alert')")
    assert page.log() == []
