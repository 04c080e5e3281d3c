"""Goal: in a real browser an operator sees what is wrong and acts on it, and everybody can: with a keyboard, on a
phone, in the dark; and nothing that a gateway says becomes more than text.

Method: Debian's Chromium by playwright over the real page, axe's rules on every page; no request leaves this machine.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import RecordEvidence, RecordGateway
from fedgate.config.protocol.messages import Status
from fedgate.config.web.formats import show_time
from tests.browser.conftest import PHONE, OpenTab, Scheme
from tests.cloud_aggregator.web.test_learning_page import make_model, save_rollout
from tests.cloud_aggregator.web.test_web_access import list_addresses
from tests.support.evidence_samples import make_evidence
from tests.support.web_page import PASSWORD, Site, make_alarm, make_site, open_page

pytestmark = [pytest.mark.slow, pytest.mark.soak]
AT = "/alarms/north/north.anomaly.2"
PLAN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 600"><rect width="1000" height="600" fill="#88a"/></svg>'
)
HOSTILE = "\"><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">{{7*7}}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A page with a plan, and a service that carries out its orders."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "plan.svg").write_text(PLAN)
    with (
        open_page(folder, *make_site(), plan=folder / "plan.svg", positions={"north": (0.2, 0.3)}) as site,
        site.serving(),
    ):
        yield site


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/login", *(path for path in list_addresses() if not path.startswith("/api"))])
def test_every_page_is_open_to_everybody(tabs: OpenTab, site: Site, path: str, scheme: Scheme) -> None:
    tab = tabs(site, "" if path == "/login" else "operator", scheme=scheme)
    tab.goto(path)
    expect(tab.get_by_role("heading", level=1)).to_be_visible()
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    tab.set_viewport_size(PHONE)
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], f"{path} is {width} wide on a phone"


@pytest.mark.parametrize("path", ["/", "/alarms", "/report?month={month}"])
def test_a_list_of_alarms_fits_a_phone(tabs: OpenTab, site: Site, path: str) -> None:
    tab = tabs(site, "viewer")
    tab.set_viewport_size(PHONE)
    begun_ns = json.loads(site.client("viewer").get(f"/api{AT}").text)["alarm"]["begun_ns"]
    tab.goto(path.format(month=show_time(begun_ns)[:7]))
    table = tab.locator("table").filter(has=tab.locator(f'td a[href="{AT}"]'))
    expect(table).to_have_count(1)
    assert table.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_an_operator_finds_the_alarm_and_acknowledges_it_with_the_keyboard_alone(tabs: OpenTab, site: Site) -> None:
    site.commit(*make_alarm("south", "anomaly", 1))
    tab = tabs(site)
    tab.goto("/")
    expect(tab).to_have_url(re.compile("/login"))
    tab.keyboard.type("operator")  # the name has the focus
    tab.keyboard.press("Tab")
    tab.keyboard.type(PASSWORD)
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_contain_text("alarm")
    press_tab_until(tab, "a[href='/alarms/south/south.anomaly.1']")
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile("/alarms/south"))
    press_tab_until(tab, "form[action='/orders/acknowledge'] button")
    tab.keyboard.press("Enter")
    expect(tab.locator("#notices .notice.good")).to_contain_text("acknowledged")
    expect(tab.locator("#main .tag.state-acknowledged")).to_be_visible()


def test_an_admin_shuts_a_gateway_out(tabs: OpenTab, tmp_path: Path) -> None:
    admitted = RecordRegistry((Certificate("a1", "north", "k", 1, 2**62),))
    with open_page(tmp_path, *make_site(), admitted, has_identity=True) as site, site.serving():
        tab = tabs(site, "admin")
        tab.goto("/gateways/north")
        expect(tab.get_by_role("button", name="Revoke")).to_be_hidden()
        tab.get_by_text("Shut this gateway out").click()
        tab.get_by_label("Its name, to be sure").fill("north")
        tab.get_by_label("Password").fill(PASSWORD)
        assert Axe().run(tab).violations_count == 0
        tab.get_by_role("button", name="Revoke").click()
        expect(tab.locator("#notices .notice.good")).to_contain_text("north is revoked")
        expect(tab.get_by_role("heading", level=1)).to_contain_text("Shut out")
        expect(tab.get_by_role("button", name="Revoke")).to_have_count(0)


def test_the_other_buttons_of_an_alarm_do_what_they_say(tabs: OpenTab, site: Site) -> None:
    tab = tabs(site, "operator")
    tab.goto(AT)

    def press(name: str, **chosen: str) -> None:
        form = tab.locator("form.button", has=tab.get_by_role("button", name=name, exact=True))
        for field, value in chosen.items():
            form.locator(f"[name={field}]").evaluate("(one, value) => { one.value = value; }", value)
        form.get_by_role("button").click()
        expect(tab.locator("#notices .notice.good")).to_be_visible()

    press("Label", label="work")
    expect(tab.locator("#main .facts")).to_contain_text("label: work")
    press("Assign", to="ben")
    expect(tab.locator("#main .facts")).to_contain_text("ben sees to it")
    press("Shelve", hours="1")
    expect(tab.locator("#main .tag.state-shelved")).to_be_visible()
    press("End shelving")
    expect(tab.locator("#main .tag.state-shelved")).to_have_count(0)
    press("Add note", text="the bearing was looked at")
    expect(tab.get_by_text("the bearing was looked at")).to_be_visible()


def test_an_admin_decides_about_a_release(tabs: OpenTab, tmp_path: Path) -> None:
    stage = {"stage": "watching", "version": 2, "canaries": ["north"], "share": 0.1, "since_ns": time.time_ns()}
    models, rollout = map(make_model, (1, 2)), save_rollout(stage, everywhere=1, candidate=2)
    with open_page(tmp_path, *make_site(), *models, rollout) as site, site.serving():
        tab = tabs(site, "admin")
        tab.goto("/learning")

        def press(name: str, password: str = PASSWORD) -> None:
            form = tab.locator("form.button", has=tab.get_by_role("button", name=name))
            form.get_by_label("Password").fill(password)
            form.get_by_role("button").click()

        press("Pause", "another password")
        expect(tab.locator("#notices .notice.bad")).to_contain_text("password is wrong")
        press("Pause")
        expect(tab.locator("#main")).to_contain_text("paused")
        expect(tab.get_by_role("button", name="Pause")).to_have_count(0)
        press("Give it to all")
        expect(tab.locator("#main")).to_contain_text("All gateways are to have model 2.")
        tab.locator("select[name=version]").select_option("1")
        press("Release")
        expect(tab.locator("#notices .notice")).to_be_visible()
        orders = tab.get_by_role("row").filter(has_text="admin")
        expect(orders.filter(has_text=re.compile("go-on: "))).to_have_count(1)
        expect(orders.filter(has_text=re.compile("release: "))).to_have_count(1)


def press_tab_until(tab: Page, selector: str) -> None:
    """Go on from one thing to the next until one of these has the focus, and is seen to have it."""
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate(f"document.activeElement.matches({selector!r})"):
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{selector} is not reached by the keyboard")


def test_the_page_follows_what_happens(tabs: OpenTab, site: Site) -> None:
    tab = tabs(site, "viewer")
    tab.goto("/")
    site.commit(*make_alarm("west", "anomaly", 0.01, text="the west pier moves"))
    expect(tab.get_by_text("the west pier moves")).to_be_visible(timeout=150_000)
    tab.goto(AT)
    expect(tab.locator("#chart-trail canvas")).to_be_visible()
    expect(tab.locator("#chart-spectrum canvas")).to_be_visible()
    assert tab.locator("form[action^='/orders']").count() == 0  # a viewer has no buttons
    client = site.client("operator")
    client.press("note", AT, alarms="north/north.anomaly.2", text="looked at it")
    expect(tab.get_by_text("looked at it")).to_be_visible(timeout=150_000)
    expect(tab.locator("#chart-trail canvas")).to_be_visible()  # and the chart is still there


def test_a_page_follows_what_happens_however_late_its_scripts_come(tabs: OpenTab, site: Site) -> None:
    tab = tabs(site, "viewer")

    def delay(route: Route) -> None:
        time.sleep(0.5)
        route.continue_()

    tab.route("**/hx-sse.min.js", delay)
    with tab.expect_request("**/events?*"):
        tab.goto("/")


def test_a_fold_that_somebody_has_opened_stays_open(tabs: OpenTab, site: Site) -> None:
    tab = tabs(site, "viewer")
    tab.goto(AT)
    fold = tab.locator("details", has_text="How to judge it yourself")
    fold.locator("summary").click()
    site.client("operator").press("note", AT, alarms="north/north.anomaly.2", text="the fold is open")
    expect(tab.get_by_text("the fold is open")).to_be_visible(timeout=150_000)
    expect(fold.locator("li").first).to_be_visible()
    fold.locator("summary").click()
    site.client("operator").press("note", AT, alarms="north/north.anomaly.2", text="the fold is shut")
    expect(tab.get_by_text("the fold is shut")).to_be_visible(timeout=150_000)
    expect(fold.locator("li").first).to_be_hidden()


def test_nobody_loses_what_they_write_when_something_happens(tabs: OpenTab, site: Site) -> None:
    tab = tabs(site, "operator")
    tab.goto(AT)
    note = tab.locator("form[action='/orders/note'] input[name=text]")
    note.fill("half a sen")
    site.commit(*make_alarm("east", "anomaly", 1.9, text="a neighbour moves"))
    note.press_sequentially("tence")
    expect(note).to_have_value("half a sentence")
    note.press("Enter")
    expect(tab.get_by_text("half a sentence")).to_be_visible()
    expect(tab.get_by_text("a neighbour moves")).to_be_visible()


def test_what_gateways_say_stays_text(tabs: OpenTab, site: Site) -> None:
    evidence = make_evidence(HOSTILE[:100], windows=5, channels=2).model_copy(update={"alarm": "east.anomaly.5"})
    status = Status(state="online", version=HOSTILE[:60])
    site.commit(
        RecordGateway("east", status, 1),
        *make_alarm("east", "anomaly", 5, text=HOSTILE, feature=HOSTILE[:60], rule=HOSTILE[:60]),
        RecordEvidence("east", evidence, 1),
    )
    tab = tabs(site, "operator")
    for path in ("/", "/alarms", "/alarms/east/east.anomaly.5"):
        tab.goto(path)
        expect(tab.get_by_text("document.title='taken'").first).to_be_visible()
        assert "taken" not in tab.title()
        assert tab.locator("img, main script").count() == 0


def test_who_is_no_longer_known_is_led_to_the_login(tabs: OpenTab, tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site(), session_hours=1e-9) as site:
        tab = tabs(site)
        tab.goto("/login")
        tab.get_by_label("Name").fill("viewer")
        tab.get_by_label("Password").fill("a wrong password")
        tab.get_by_role("button", name="Log in").click()
        expect(tab.get_by_role("alert")).to_have_text("The name or the password is wrong.")
        tab.get_by_label("Name").fill("viewer")
        tab.get_by_label("Password").fill(PASSWORD)
        tab.get_by_role("button", name="Log in").click()  # and the session is over at once
        expect(tab).to_have_url(re.compile("/login"))
        tab.close()  # it may still load what the page needs, and the service ends
