"""Goal: in a real browser who stands before a gateway sees what it does, live, whatever they see with.

Method: Debian's Chromium by playwright over the gateway's page, axe's rules on each; no request leaves this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Route, expect

from fedgate.config.protocol.messages import FARTHEST
from fedgate.config.web.charts import Point, draw_scores
from fedgate.models.time_units import NS
from tests.browser.conftest import PHONE, OpenTab, Scheme
from tests.gateway_agent.monitor.test_gateway_sensors import START_S, feed
from tests.support.gateway_page import GatewayPage, open_gateway_page
from tests.support.sites import T0_NS, samples

pytestmark = [pytest.mark.slow, pytest.mark.soak]
LIVE_MS = 60_000


@pytest.fixture
def page(tmp_path: Path) -> Iterator[GatewayPage]:
    """The page of a gateway on which an anomaly stands; asked for before tabs, which are closed first then."""
    with open_gateway_page(tmp_path) as page:
        yield page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("is_running", [True, False])
def test_each_page_is_open_to_everybody(page: GatewayPage, tabs: OpenTab, scheme: Scheme, is_running: bool) -> None:
    tab = tabs(page, scheme=scheme)

    def look() -> None:
        for path in ("/", "/device"):
            tab.goto(path)
            expect(tab.get_by_role("heading", level=1)).to_be_visible()
            found = Axe().run(tab)
            assert found.violations_count == 0, found.generate_report()
            size = tab.viewport_size
            tab.set_viewport_size(PHONE)
            assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert size is not None
            tab.set_viewport_size(size)

    if is_running:
        with page.running():
            look()
    else:
        look()


def test_it_follows_the_agent_and_tells_when_that_ends(page: GatewayPage, tabs: OpenTab) -> None:
    tab = tabs(page)
    with page.running():
        tab.goto("/")
        for chart in ("trail", "spectrum", "scores"):
            expect(tab.locator(f"#chart-{chart} canvas")).to_be_visible()
        expect(tab.get_by_role("heading", level=1)).to_have_text("The agent watches with model 1: anomaly.")
        page.state, _ = feed(page.state, samples(45, 40), START_S + 45)
        expect(tab.get_by_role("heading", level=1)).to_have_text(
            "The agent watches with model 1: no alarm.", timeout=LIVE_MS
        )
        expect(tab.get_by_role("heading", name="The proof of the last anomaly, which is over")).to_be_visible()
        expect(tab.locator("#chart-trail canvas")).to_be_visible()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("The agent does not run", timeout=LIVE_MS)
    with page.running():
        expect(tab.get_by_role("heading", level=1)).to_contain_text("The agent watches", timeout=LIVE_MS)


def test_a_renewal_that_is_never_answered_is_not_the_last(page: GatewayPage, tabs: OpenTab) -> None:
    tab = tabs(page, expected="htmx:error: timeout")
    lost: list[Route] = []

    def lose_one(route: Route) -> None:
        if lost:
            route.continue_()
        else:
            lost.append(route)

    tab.add_init_script("window.setInterval = () => 0;")  # else the page is renewed each minute in any case
    with page.running():
        tab.goto("/")
        tab.route("**/", lose_one)
        page.state, _ = feed(page.state, samples(45, 40), START_S + 45)
        expect(tab.get_by_role("heading", level=1)).to_contain_text("no alarm", timeout=3 * LIVE_MS)
    assert lost


DRAWN = """async (charts) => {
  const places = charts.map((chart) => {
    const place = document.createElement("div");
    place.className = "chart";
    place.dataset.chart = JSON.stringify(chart);
    document.querySelector("main").append(place);
    draw(place);
    return place;
  });
  await new Promise((over) => setTimeout(over, 100)); // it draws when all that runs is over
  return places.map((place) => place.querySelector(".uplot").clientWidth);
}"""


def test_scores_of_any_height_are_drawn(page: GatewayPage, tabs: OpenTab) -> None:
    """Ticks of an axis that is logarithmic on both sides of zero end, whatever the level: -0.9517 once found no end."""
    tab = tabs(page)
    tab.goto("/")
    charts = []
    for level in (-0.9517, -1.394, 191.6, 3e-7, -4.2e-12, 9.9e20, 0.0, 1.0):
        for highest in (883.6 * abs(level), 31.0 * abs(level), FARTHEST, 1.0):
            scores = [-2.5 * abs(level), 0.3 * abs(level), highest]
            points = [Point(T0_NS + place * NS, score, level) for place, score in enumerate(scores)]
            charts.append(draw_scores(points, 1.0))
    assert min(tab.evaluate(DRAWN, charts)) > 300  # pixels; one that failed is as narrow as its legend
