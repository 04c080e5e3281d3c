"""Debian's Chromium, and tabs in it that notice what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from tests.support.web_page import PASSWORD

PHONE, DESK = ViewportSize(width=360, height=740), ViewportSize(width=1200, height=900)
Scheme = Literal["light", "dark"]
OpenTab = Callable[..., Page]


class Served(Protocol):
    """A page that is served on this machine."""

    @property
    def port(self) -> int:
        """At which port."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    found = shutil.which("chromium")
    assert found, "chromium is not installed: sudo apt-get install chromium"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


def is_complaint(line: ConsoleMessage, expected: str) -> bool:
    """Tell whether something is wrong; a login that fails is answered with 401, which Chromium calls an error."""
    return line.type == "error" and "status of 401" not in line.text and (not expected or expected not in line.text)


@pytest.fixture
def tabs(browser: Browser) -> Iterator[OpenTab]:
    """Opens tabs, of somebody who is logged in where a user is named; what their scripts complain of fails the test,
    but for what is expected, as does a request to anybody but the page.
    """
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_tab(site: Served, user: str = "", scheme: Scheme = "light", expected: str = "") -> Page:
        at = f"http://127.0.0.1:{site.port}"
        contexts.append(browser.new_context(base_url=at, viewport=DESK, color_scheme=scheme))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("console", lambda line: complaints.append(line.text) if is_complaint(line, expected) else None)
        tab.on("request", lambda one: None if one.url.startswith(at) else complaints.append(one.url))
        if user:
            tab.goto("/login")
            tab.get_by_label("Name").fill(user)
            tab.get_by_label("Password").fill(PASSWORD)
            tab.get_by_role("button", name="Log in").click()
            expect(tab.get_by_role("button", name="Log out")).to_be_visible()
        return tab

    yield open_tab
    for one in contexts:
        one.close()
    assert complaints == []
