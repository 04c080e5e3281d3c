"""Names of ours, and behind them names that other installed packages register as entry points.

Nothing but code that is installed on this machine is ever loaded, and that only where its name is asked for and is none
of ours: a gateway's agent, which asks for none, looks for no entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class InstallationError(ValueError):
    """A name that another package registers and that cannot be used; the message names the package."""


class Registry(Mapping[str, Entry]):
    """What can be asked for by name: `ours`, and what other packages register in the group `fedgate.<kind>s`."""

    def __init__(self, kind: str, ours: Mapping[str, Entry], type_: Any) -> None:
        """`kind` says in messages what an entry is; each entry of other packages must be an instance of `type_`."""
        self.kind, self.ours, self._type = kind, ours, type_
        self._loaded: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        """Return the entry of a name: ours where we have one.

        Raises `KeyError` for a name that nobody has, and `InstallationError` for one of another package that cannot be
        loaded, is of another type or has two packages, or where a package registers a name of ours.
        """
        if name in self.ours:
            return self.ours[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def described(self, name: str) -> str:
        """Return what a name is, and of which package where it is not ours."""
        if name in self.ours or name not in self._registered:
            return f"{self.kind} {name!r}"
        point = self._registered[name][0]
        return f"{self.kind} {name!r} of the package {_package(point)} ({point.value})"

    def __contains__(self, name: object) -> bool:
        """Tell whether somebody has the name, without loading anything."""
        return name in self.ours or name in self._registered

    def __iter__(self) -> Iterator[str]:
        """Yield our names, then those of other packages in their order."""
        yield from self.ours
        yield from sorted(self._registered.keys() - self.ours.keys())

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(self.ours.keys() | self._registered.keys())

    @cached_property
    def _registered(self) -> dict[str, list[EntryPoint]]:
        from importlib.metadata import entry_points  # late: only who asks for a name that is not ours pays for it

        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=f"fedgate.{self.kind}s"):
            found.setdefault(point.name, []).append(point)
        return found

    def _load(self, name: str) -> Entry:
        (point, *others) = self._registered[name]
        for taken in self._registered.keys() & self.ours.keys():
            package = _package(self._registered[taken][0])
            raise InstallationError(
                f"{self.kind} {taken!r} is fedgate's own, and the package {package} registers one of this name; "
                "expected another name there, or the package not installed"
            )
        if others:
            packages = ", ".join(sorted(_package(one) for one in (point, *others)))
            raise InstallationError(f"{self.kind} {name!r} is registered by {packages}; expected one package")
        where = self.described(name)
        try:
            entry = point.load()
        except (ImportError, AttributeError, SyntaxError) as error:
            raise InstallationError(f"{where} cannot be loaded: {error}") from error
        except BaseException as error:
            error.add_note(f"raised while this was loaded: {where}")
            raise
        if not isinstance(entry, self._type):
            raise InstallationError(f"{where}: expected {self._type.__name__}, got {type(entry).__name__}")
        found: Entry = entry
        return found


def _package(point: EntryPoint) -> str:
    """Return the name and the version of the package that registers an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of an unknown name"
