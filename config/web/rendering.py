"""The templates of a page: its own, and those that both programs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from fedgate.config.web.formats import FILTERS

SHARED = Path(__file__).parent
OF_DICTIONARIES = frozenset(dir(dict))


class FactsEnvironment(Environment):
    """Templates whose `one.name` is first the fact of that name: what they show are dictionaries, and jinja2 would look
    for an attribute first, in vain and slowly.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return a fact, or the attribute: gateways name facts too, and none is called in place of a method."""
        if isinstance(obj, dict) and attribute in obj and attribute not in OF_DICTIONARIES:
            return obj[attribute]
        return super().getattr(obj, attribute)


def read_templates(folder: Path) -> Environment:
    """Return the templates in a folder, with those that they build on; all that they are given is text, escaped."""
    folders = [folder, SHARED / "templates"]
    loader = FileSystemLoader(folders)
    made = FactsEnvironment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters |= FILTERS
    return made


def mount_static() -> Mount:
    """Return where scripts and styles are served."""
    return Mount("/static", StaticFiles(directory=SHARED / "static"))
