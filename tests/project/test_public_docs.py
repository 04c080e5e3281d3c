"""Goal: who uses `fedgate.models` as a library learns from docstrings what a name takes, gives and raises.

Method: rules read from the syntax tree of every public name: the docstring is there; it names shapes where parameters
or the result are arrays, and each error that the body raises; a module of a detector or an algorithm names its source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest

from tests.project.test_tidy_project import CITATION
from tests.support.syntax import ROOT, Function, name_of

FOLDERS = (
    "federated",
    "detectors",
    "alarms",
    "features",
    "windows",
    "testing",
    "",
)  # "": the modules of models/ itself
OF_A_SOURCE = ("federated", "detectors")
SOURCE = re.compile(rf"{CITATION.pattern}|\b[\w-]+ paper\b")
ARRAYS = re.compile(r"\b(?:Array|Floats|NDArray)\b")
BY_NAME = re.compile(r"(?:Mapping|dict)\[str, Array\]")  # as `Arrays`: of no one shape
WORDS = "BINS|bins|channels|classes|columns|count|inputs|lags|outputs|rows|size|steps|STEPS"  # that stand for a letter
SIDE = rf"(?:\.\.\.|[A-Za-z]\w?|\d+|{WORDS})"
SIDES = rf"{SIDE}(?: ?[-+*/] ?{SIDE})*"
SHAPE = re.compile(rf"\(\)|\({SIDES},\)|\({SIDES}(?:, {SIDES})+\)|of (?:any|one) shape|shape of")
Named = ast.FunctionDef | ast.ClassDef


class Class(NamedTuple):
    """What a class of the library builds on, and what its methods say."""

    bases: list[str]
    docstrings: dict[str, str]


Classes = Mapping[str, Class]


def faults(path: str, text: str, known: Classes) -> Iterator[str]:
    """Yield the public names of a module of which the docstring does not say all that it should."""
    tree = ast.parse(text)
    folder = path.split("/")[1]
    docstring = ast.get_docstring(tree) or ""
    if folder in OF_A_SOURCE and not path.endswith("__init__.py") and not SOURCE.search(docstring):
        yield f"{path}:1: the module names no source; cite the paper and its equation, or say that it is ours"
    for node in _public(tree.body):
        yield from _faults_of(path, node, _docstring(node), known)
        if isinstance(node, ast.ClassDef):
            for method in _public(node.body):
                docstring = _docstring(method) or _inherited(node, method.name, tree, known)
                yield from _faults_of(path, method, docstring, known, of_class=_docstring(node))


def _faults_of(path: str, node: Named, docstring: str, known: Classes, *, of_class: str = "") -> Iterator[str]:
    place = f"{path}:{node.lineno}: {node.name}"
    if not docstring:
        yield f"{place} has no docstring"
    elif isinstance(node, ast.FunctionDef):
        if _has_arrays(node) and not SHAPE.search(f"{of_class} {docstring}"):
            yield f"{place} takes or returns arrays and names no shape such as (n, F)"
        for error in sorted(_raised(node)):
            named = "|".join([error, *_bases(error, known)])
            if not re.search(rf"[Rr]aise[sd]?\b.*\b({named})\b", docstring):
                yield f"{place} raises {error} and does not say so"


def _public(body: Iterable[ast.stmt]) -> Iterator[Named]:
    return (node for node in body if isinstance(node, Named) and not node.name.startswith("_"))


def _docstring(node: Named) -> str:
    return " ".join((ast.get_docstring(node) or "").split())


def _inherited(node: ast.ClassDef, method: str, tree: ast.Module, known: Classes) -> str:
    """Return what a base of the class says of a method, or a protocol beside it, which its classes need not name."""
    beside = [each.name for each in _public(tree.body) if isinstance(each, ast.ClassDef)]
    bases = [*_bases(node.name, known), *(name for name in beside if "Protocol" in known[name].bases)]
    said = [known[base].docstrings.get(method, "") for base in bases if base in known]
    return next(filter(None, said), "")


def _bases(name: str, known: Classes) -> Iterator[str]:
    """Yield what a class builds on, near before far."""
    for base in known[name].bases if name in known else ():
        yield base
        yield from _bases(base, known)


def _has_arrays(node: ast.FunctionDef) -> bool:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    annotations = [argument.annotation for argument in arguments] + [node.returns]
    return any(each is not None and ARRAYS.search(BY_NAME.sub("", ast.unparse(each))) for each in annotations)


def _raised(node: ast.FunctionDef) -> set[str]:
    """Return the errors that a function's own body raises, not those of functions in it."""
    found, waiting = set(), list[ast.AST](node.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call):
            found.add(ast.unparse(part.exc.func).rpartition(".")[2])
        waiting += ast.iter_child_nodes(part)
    return found


def classes_of(texts: Iterable[str]) -> Classes:
    """Return the classes in some modules."""
    nodes = [node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: Class(
            [base.id for base in node.bases if isinstance(base, ast.Name)],
            {method.name: _docstring(method) for method in _public(node.body)},
        )
        for node in nodes
    }


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """The text of every module of the library, by its path."""
    return {name_of(path): path.read_text("utf-8") for path in sorted((ROOT / "models").rglob("*.py"))}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder or "models")
def test_docstrings_say_what_a_name_takes_gives_and_raises(folder: str, modules: dict[str, str]) -> None:
    known = classes_of(modules.values())
    found = [
        f"\n{fault}"
        for path, text in modules.items()
        if (path.split("/")[1] if path.count("/") > 1 else "") == folder
        for fault in faults(path, text, known)
    ]
    assert not found, "".join(found)


SAYS_TOO_LITTLE = '''"""A detector."""

def f(x: Array) -> Floats:
    """Return the scores (of these, all)."""
    raise SettingError("no")

class A(Protocol):
    def score(self, x: Array) -> float: ...
'''
SAYS_ALL = '''"""A detector (ours)."""

class FitError(ValueError):
    """It cannot be fitted."""

class SettingError(FitError):
    """It cannot be fitted so."""

def f(x: Array, tables: Mapping[str, Array]) -> Floats:
    """Return the scores (n,); raises `FitError`."""
    def g() -> None:
        raise KeyError("of another function")
    if not len(x):
        raise SettingError("no")

def g(tables: Mapping[str, Array]) -> Arrays:
    """Return them by name."""

class A(Protocol):
    """Of rows (n, F)."""

    def score(self, x: Array) -> float:
        """Return the highest."""

class B:
    """One, of rows (n, F)."""

    def score(self, x: Array) -> float:
        return 0.0
'''


def test_a_docstring_that_says_too_little_is_caught() -> None:
    found = faults("models/detectors/x.py", SAYS_TOO_LITTLE, classes_of([SAYS_TOO_LITTLE]))
    assert [fault.removeprefix("models/detectors/x.py:").partition(";")[0] for fault in found] == [
        "1: the module names no source",
        "3: f takes or returns arrays and names no shape such as (n, F)",
        "3: f raises SettingError and does not say so",
        "7: A has no docstring",
        "8: score has no docstring",
    ]


def test_a_docstring_that_says_all_passes() -> None:
    assert list(faults("models/detectors/x.py", SAYS_ALL, classes_of([SAYS_ALL]))) == []
