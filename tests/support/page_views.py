"""A page over a real store, as facts and as what a browser gets, and the markup that is in it."""

from __future__ import annotations

import json
from contextlib import closing
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.events import Durable
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.access import Visitor
from fedgate.cloud_aggregator.web.app import Web
from fedgate.cloud_aggregator.web.pages.page import Context, Page
from fedgate.cloud_aggregator.web.sessions import Session
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.settings.web import Role
from fedgate.config.web.charts import Facts
from tests.support.sites import FEATURES, SITE

NOW_NS = 1_790_000_000 * 10**9  # 2026-09-21 13:33:20 UTC
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}&amp;אבג"


def make_settings(folder: Path, **tables: Any) -> AggregatorSettings:
    """Return the settings of a site in a folder."""
    own = {"site": SITE, "store": folder / "aggregator.db"}
    return AggregatorSettings.model_validate({"aggregator": own, "features": FEATURES, **tables})


def commit(folder: Path, *effects: Durable) -> None:
    """Store something, as the service does."""
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit(effects)


def read_facts(folder: Path, page: Page, tables: Any = None, **address: str) -> Facts:
    """Return what a page shows at `NOW_NS`, as a program gets it; `tables` are of its settings."""
    with closing(Store(folder / "aggregator.db", is_read_only=True)) as store:
        facts = page.read(Context(make_settings(folder, **(tables or {})), store, NOW_NS), address)
    made: Facts = json.loads(json.dumps(facts, allow_nan=False))
    return made


def render(folder: Path, page: Page, facts: Facts, role: Role = "admin") -> str:
    """Return a page as somebody with a role gets it."""
    visitor = Visitor("ada", role, Session("ada", 0.0, "", "token"), is_local=True)
    answer = Web(make_settings(folder))._render(page.template, visitor, title=page.title, **facts)
    assert answer.status_code == 200
    return bytes(answer.body).decode()


class Markup(HTMLParser):
    """The elements of a document with the names of their attributes, its headings, and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.headings: list[int] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, *sorted(name for name, _ in attrs)))
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)


def check_moment(text: str) -> None:
    """Assert that a page says of which moment it is, within what is renewed by its script and nowhere else."""
    before, _, rest = text.partition('<main id="main"')
    renewed, _, after = rest.partition("</main>")
    assert [part.count("As of <time") for part in (before, renewed, after)] == [0, 1, 0]


def check_headings(text: str) -> None:
    """Assert that a page has one first heading, and that none below it leaves out a level."""
    found = Markup(text).headings
    assert found[0] == 1 and found.count(1) == 1
    assert all(one - before <= 1 for before, one in pairwise(found))
    for element in Markup(text).elements:
        assert element[0] != "th" or "scope" in element
