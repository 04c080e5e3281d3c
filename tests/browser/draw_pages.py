"""Draw the pictures of the page that the documents show, of the demo's story: `make pictures`."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from fedgate.firmware_sim import children
from fedgate.firmware_sim.demo.page import USER
from tests.support.waiting import until

DESK, PHONE = ViewportSize(width=1100, height=900), ViewportSize(width=390, height=844)
COLOURS = 128  # of a palette: a page has few
KEPT = "until Ctrl-C."  # how the demo's last line ends


class Shot(NamedTuple):
    """A picture: which page, and how it is looked at."""

    name: str
    path: str
    viewport: ViewportSize = DESK
    scheme: Literal["light", "dark"] = "light"
    is_whole: bool = True


def list_shots(alarm: str) -> list[Shot]:
    """Return the pictures; `alarm` is the address of one."""
    return [
        Shot("overview", "/"),
        Shot("alarm", alarm),
        Shot("gateway", "/gateways/gateway-1"),
        Shot("learning", "/learning"),
        Shot("report", "/report"),
        Shot("phone", "/", PHONE, is_whole=False),
        Shot("dark", alarm, scheme="dark", is_whole=False),
    ]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Run Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


class Demo(NamedTuple):
    """A demo whose processes run on, and where its page is."""

    process: subprocess.Popen[bytes]
    folder: Path
    address: str
    password: str


@contextmanager
def run_demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    """Play the demo's story, and let all of it run until the `with` block ends."""
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as file:
        command = ("firmware_sim", "demo", "--keep", "--out", str(folder), *arguments)
        process = children.start_module(*command, stdout=file, stderr=file)
    try:
        until(lambda: process.poll() is not None or KEPT in log.read_text(), log.read_text)
        found = re.search(rf"page: (\S+), user {USER}, password (\S+)", log.read_text())
        assert found, log.read_text()
        yield Demo(process, folder, *found.groups())
    finally:
        process.terminate()
        process.wait()


def draw(browser: Browser, address: str, password: str, folder: Path) -> list[Path]:
    """Write the pictures of a page, `page-NAME.png` each, and return where."""
    state = browser.new_context(base_url=address)
    tab = state.new_page()
    log_in(tab, password)
    told = json.loads(tab.request.get("/api/alarms?state=any").text())["alarms"]
    alarms = [one for one in told if one["gateway"] == "gateway-1"]
    assert alarms, "the page has no alarm of gateway-1"
    kept, written = state.storage_state(), []
    for shot in list_shots(f"/alarms/gateway-1/{alarms[0]['id']}"):
        look = browser.new_context(
            base_url=address, storage_state=kept, viewport=shot.viewport, color_scheme=shot.scheme
        )
        tab = look.new_page()
        tab.goto(shot.path)
        tab.wait_for_function("[...document.querySelectorAll('.chart')].every((one) => one.querySelector('canvas'))")
        picture = Image.open(io.BytesIO(tab.screenshot(full_page=shot.is_whole)))
        written.append(folder / f"page-{shot.name}.png")
        reduced = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        reduced.save(written[-1], optimize=True)  # a thin line has its colour, which a median of areas would lose
        look.close()
    state.close()
    return written


def log_in(tab: Page, password: str) -> None:
    """Log the demo's user in."""
    tab.goto("/login")
    tab.get_by_label("Name").fill(USER)
    tab.get_by_label("Password").fill(password)
    tab.get_by_role("button", name="Log in").click()
    tab.wait_for_url("**/")


def main(folder: str) -> None:
    """Draw the demo's page into a folder."""
    with TemporaryDirectory() as scratch, run_demo(Path(scratch) / "demo") as demo, open_browser() as browser:
        for path in draw(browser, demo.address, demo.password, Path(folder)):
            print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
