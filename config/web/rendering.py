"""The templates of a page: its own, and those that both programs share."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from fedgate.config.web.formats import FILTERS

SHARED = Path(__file__).parent


def read_templates(folder: Path) -> Environment:
    """Return the templates in a folder, with those that they build on; all that they are given is text, escaped."""
    folders = [folder, SHARED / "templates"]
    made = Environment(loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters |= FILTERS
    return made


def mount_static() -> Mount:
    """Return where scripts and styles are served."""
    return Mount("/static", StaticFiles(directory=SHARED / "static"))
