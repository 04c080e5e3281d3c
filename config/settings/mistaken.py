"""What an operator seems to have meant: which key, in place of one that there is not, and which of the two files."""

from __future__ import annotations

import difflib
import tomllib
from typing import Any, get_args

from pydantic import BaseModel

FILES = {"gateway": "a gateway.toml", "aggregator": "an aggregator.toml"}  # by the table that only this file has


def other_file(text: str, kind: type[BaseModel]) -> list[str]:
    """Return the one problem of a file that is the other program's; nothing where it is not."""
    held = tomllib.loads(text)
    own = next((name for name in FILES if name in kind.model_fields), "")
    other = next((name for name in FILES if name in held and name != own), "")
    if not own or not other or own in held:
        return []
    return [f"1: this is {FILES[other]}, of the other program; expected {FILES[own]}"]


def meant_key(kind: type[BaseModel], location: tuple[str | int, ...]) -> str:
    """Return the known key that looks most like the last of a path into settings of a kind; empty where none does."""
    kinds = {kind}
    for part in location[:-1]:
        if isinstance(part, str):  # not the place in an array; and not the name of a variant, which no field has
            fields = [one.model_fields[part].annotation for one in kinds if part in one.model_fields]
            kinds = {found for field in fields for found in _models(field)} or kinds
    names = sorted({name for one in kinds for name in one.model_fields})
    return next(iter(difflib.get_close_matches(str(location[-1]), names, n=1)), "")


def _models(annotation: Any) -> set[type[BaseModel]]:
    """Return the kinds of tables that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for part in get_args(annotation) for found in _models(part)}
