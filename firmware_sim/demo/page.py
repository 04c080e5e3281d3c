"""The page of a demo: `cloud-aggregator web` as one more process, with a user and a password for the occasion."""

from __future__ import annotations

import os
import secrets
import sys
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.web.users import put_user
from fedgate.config.settings.web import USERS
from fedgate.firmware_sim.broker import HOST, find_free_port
from fedgate.firmware_sim.demo.scenarios import Story

USER, PASSWORD_BYTES = "demo", 9
WITHIN_S = 5.0
PLAN = "plan.svg"


class Page(NamedTuple):
    """Where a page is, and who may log in."""

    folder: Path
    port: int
    password: str

    @property
    def address(self) -> str:
        """What is typed into a browser."""
        return f"http://{HOST}:{self.port}"

    @property
    def login(self) -> str:
        """How to get in."""
        return f"{self.address}, user {USER}, password {self.password}"

    def is_served(self) -> bool:
        """Tell whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.address}/login", timeout=WITHIN_S) as answer:  # noqa: S310 - our own
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def describe(self, *, is_kept: bool) -> str:
        """Return how to look at it, now that all runs or after it has ended."""
        if is_kept:
            return f"page: {self.login}\nBroker, aggregator, gateways and page run until Ctrl-C."
        program = os.path.relpath(Path(sys.executable).with_name("cloud-aggregator"))
        return f"page: {program} web -c {self.folder / 'aggregator.toml'}\n      {self.login}; Ctrl-C ends it"


def make_page(folder: Path) -> Page:
    """Make a page in the folder of a demo: a free port, and an admin with a random password."""
    page = Page(folder, find_free_port(), secrets.token_urlsafe(PASSWORD_BYTES))
    put_user(folder / USERS, USER, "admin", page.password)
    return page


def describe_table(page: Page, story: Story, names: Sequence[str]) -> dict[str, Any]:
    """Return the `[web]` table of the aggregator's settings; writes the plan of the site where the story has one."""
    table: dict[str, Any] = {"listen": f"{HOST}:{page.port}"}
    if story.plan is None:
        return table
    (page.folder / PLAN).write_bytes(story.plan.read_bytes())
    return table | {"plan": PLAN, "positions": dict(zip(names, story.positions, strict=True))}
