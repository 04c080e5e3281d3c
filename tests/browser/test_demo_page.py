"""Goal: the demo ends by saying where its page is, and the page tells the story with its evidence: which sensor, what
changed, seen by whom; Ctrl-C ends all of it, and the page can be looked at once more afterwards.

Method: the demo as a user runs it, Debian's Chromium, process ids.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from fedgate.firmware_sim import children
from tests.browser.draw_pages import Demo, draw, list_shots, log_in, open_browser, run_demo
from tests.support.waiting import until

pytestmark = pytest.mark.slow
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BYTES_MAX = 150_000
CHANGES = {
    "gateway-1": r"Munich test bridge, force FRC-01, load: mean is 2\d\d.* kN, usually 239\.7 kN",
    "gateway-2": r"Munich test bridge, force FRC-02, load: mean is 1\d\d.* kN, usually 239 kN",
    "gateway-3": r"Munich test bridge, strain DMS_CN, load: mean is \d\d.* um/m, usually 0\.0974 um/m",
}


@contextmanager
def run_page(demo: Demo, log: Path) -> Iterator[None]:
    """Serve the page of a demo that is over, as its `aggregator.toml` says."""
    with log.open("wb") as file:
        settings = str(demo.folder / "aggregator.toml")
        process = children.start_module("cloud_aggregator", "web", "-c", settings, stdout=file, stderr=file)
    try:
        until(lambda: demo.address in log.read_text(), log.read_text)
        yield
        process.terminate()
        assert children.wait_for_end(process, 60.0) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.soak
def test_the_page_of_the_demo_tells_what_changed_where_until_ctrl_c(tmp_path: Path) -> None:
    with open_browser() as browser, run_demo(tmp_path / "demo", "--speed", "100") as demo:
        tab = browser.new_context(base_url=demo.address).new_page()
        log_in(tab, demo.password)
        expect(tab.locator(".plan a")).to_have_count(3)
        for gateway, change in CHANGES.items():
            tab.goto("/alarms?state=any")
            tab.locator("tr", has_text=gateway).get_by_text(re.compile(change)).click()
            expect(tab.get_by_role("row").filter(has_text="load.level").first).to_contain_text("mean is")
            expect(tab.locator("#chart-trail canvas")).to_be_visible()
            expect(tab.locator("#chart-spectrum canvas")).to_be_visible()
        drawn = draw(browser, demo.address, demo.password, tmp_path)
        for path in (*drawn, *(IMAGES / one.name for one in drawn)):
            assert 10_000 < path.stat().st_size < BYTES_MAX, path
        assert len(drawn) == len(list_shots(""))

        tab.close()  # it would go to the login by itself, just as the next one does
        below = children.family(demo.process.pid)
        assert len(below) == 7  # the demo, a broker, the aggregator, its page, three agents
        demo.process.send_signal(signal.SIGINT)
        assert children.wait_for_end(demo.process, 60.0) == 0, (tmp_path / "demo.log").read_text()
        assert not any(map(children.is_alive, below))

        with run_page(demo, tmp_path / "again.log"):
            tab = browser.new_context(base_url=demo.address).new_page()
            log_in(tab, demo.password)
            expect(tab.get_by_role("heading", level=1)).to_contain_text("The service does not run")
