"""Our own files as the tidy tests see them: which there are, what they import, what a name in them stands for."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAME = "fedgate."  # under which all of it is imported
PACKAGES = ("models", "config", "gateway_agent", "cloud_aggregator", "firmware_sim")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.Module | ast.ClassDef | Function


class Source(NamedTuple):
    """A Python file of ours; `path` is relative to the root, with slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]


def parse(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text))


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files that belong to the project, not what tools and virtual environments leave beside them."""
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            yield entry
        elif not (
            (entry.name.startswith(".") and entry.name != ".ci")
            or entry.name in {"build", "dist", "out", "__pycache__"}
            or entry.name.endswith(".egg-info")
            or (entry / "pyvenv.cfg").exists()
        ):
            yield from walk(entry)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def sources() -> list[Source]:
    """Return every Python file of the packages and the tests, parsed once."""
    folders = [ROOT / name for name in (*PACKAGES, "tests")]
    paths = [path for folder in folders for path in walk(folder) if path.suffix == ".py"]
    return [parse(name_of(path), path.read_text(encoding="utf-8")) for path in paths]


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a tree and all below it, walked once for all rules."""
    return tuple(ast.walk(tree))


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and module of each import, wherever it stands, ours as the path of its file says it: `config.cli` for
    `fedgate.config.cli`. A relative one belongs to `package`.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.removeprefix(NAME)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fedgate":
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, package if node.level else (node.module or "").removeprefix(NAME)


def run_on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that importing a module runs: no function bodies, nothing that only type checkers read."""
    for statement in body:
        if isinstance(statement, Function):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        handlers = [child for handler in getattr(statement, "handlers", []) for child in handler.body]
        if inner or handlers:
            yield from run_on_import(inner + handlers)
        else:
            yield statement


def aliases(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for: `np` -> `numpy`, `datetime` -> `datetime.datetime`."""
    names: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of `a.b.c` with its first part resolved, or an empty string for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (parent := dotted(node.value, names)):
        return f"{parent}.{node.attr}"
    return ""


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the full name of what is called with each call."""
    names = aliases(tree)
    return ((dotted(node.func, names), node) for node in nodes(tree) if isinstance(node, ast.Call))


def definitions(tree: ast.Module) -> Iterator[Definition]:
    return (node for node in nodes(tree) if isinstance(node, Definition))


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
