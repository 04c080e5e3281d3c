"""Style as a test, for the project as a whole: what must be listed, typed, collected and told in the changelog."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fedgate.models.federated import ALGORITHMS
from tests.support.syntax import NAME, PACKAGES, ROOT, Source, imported, name_of, nodes, parse, sources, walk

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|Users)/\w")
# A year, an identifier or a numbered part of a publication; or the plain word that there is none.
CITATION = re.compile(r"\b(19|20)\d\d\b|\barXiv\b|\bdoi\b|\b(Algorithm|Eq\.|Equation|Section|Theorem) \d|\bours\b")
MODULES_MAX = 15  # of a folder
SERVICES = ("gateway_agent", "cloud_aggregator", "config")
NOUNS_SHARE_MAX = 0.1
VERBS = frozenset(
    (ROOT / "tests" / "project" / "data" / "verbs.txt").read_text("utf-8").split()
)  # a new one goes there
PREDICATES = frozenset({"is", "has", "can", "may", "must", "to", "as", "from", "on"})
OF_A_COPY = {"with", "without", "having", "changed"}
STUDIES = "firmware_sim/studies/"
FOLDERS_OF_TEST_DATA = {"data", "golden", "packages"}


def machine_paths(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := MACHINE_PATH.search(line):
            yield f"{path}:{number}: {found[0]}... is a path of one machine; take it as an argument"


def uncollected(files: Iterable[str], parsed: Iterable[Source]) -> Iterator[str]:
    """Yield files of `tests/` that pytest neither collects nor loads, and no file of ours runs by its name: what never
    runs looks like what passes.
    """
    used = {module for file in parsed for module in _used(file)}
    for path in map(PurePosixPath, files):
        if path.suffix == ".py":
            module = ".".join(path.with_suffix("").parts)
            collected = path.name.startswith("test_") or path.name in {"conftest.py", "__init__.py"}
            if not collected and module not in used:
                yield f"{path}:1: pytest does not collect it and no test imports it; name it test_*.py or delete it"
        elif not FOLDERS_OF_TEST_DATA & set(path.parts):
            yield f"{path}:1: test data belongs into a folder named {' or '.join(sorted(FOLDERS_OF_TEST_DATA))}"


def _used(file: Source) -> Iterator[str]:
    """Yield the modules that a file imports, and those of tests that it names in full, such as to run them."""
    yield from (module for _, module in imported(file.tree, file.package))
    texts = (node.value for node in ast.walk(file.tree) if isinstance(node, ast.Constant))
    yield from (text for text in texts if isinstance(text, str) and text.startswith("tests."))


def algorithm_faults(algorithms: Mapping[str, Callable[..., Any]], folder: Path, tests: Path) -> Iterator[str]:
    """Yield algorithms without a test or a source, and files in `folder` that make one which is not listed."""
    modules = {name: getattr(factory, "func", factory).__module__ for name, factory in algorithms.items()}
    for name, module in modules.items():
        file = f"{module.removeprefix(NAME).replace('.', '/')}.py:1"
        test = f"test_{name.replace('-', '_')}.py"
        if not any(tests.rglob(test)):
            yield f"{file}: {name} has no {test} in tests; test it against an oracle"
        if not CITATION.search(sys.modules[module].__doc__ or ""):
            yield f"{file}: the docstring names no source; cite the paper and its algorithm, or say it is ours"
    listed = {getattr(factory, "func", factory).__name__ for factory in algorithms.values()}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and _makes_algorithm(node) and node.name not in listed:
                yield f"{path.name}:{node.lineno}: {node.name} is not in ALGORITHMS; list it or delete it"


def _makes_algorithm(node: ast.FunctionDef) -> bool:
    """Tell whether a function is a factory: of the number of features it makes an algorithm."""
    returned, first = node.returns, [argument.arg for argument in node.args.args[:1]]
    return isinstance(returned, ast.Name) and returned.id == "Algorithm" and first == ["feature_count"]


def circles(imports: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield folders that import themselves by way of others, of `imports` by folder."""
    for folder in sorted(imports):
        seen, waiting = set[str](), list(imports[folder])
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += imports.get(one, ())
        if folder in seen:
            yield f"{folder}:1: it imports itself by way of {', '.join(sorted(seen - {folder}))}"


def folders_imported(files: Iterable[Source], root: Path) -> dict[str, set[str]]:
    """Return which other folders each folder imports from. A file beside the folders of a package stands for itself;
    a package's own file, which only lists, stands apart.
    """
    found: dict[str, set[str]] = {}
    for file in files:
        if not file.path.endswith("__init__.py"):
            here = _folder_of(PurePosixPath(file.path).with_suffix(""))
            there = {path if (root / path).is_dir() else _folder_of(path) for path in _paths_imported(file.tree, root)}
            found.setdefault(here.as_posix(), set()).update(folder.as_posix() for folder in there - {here})
    return found


def _folder_of(module: PurePosixPath) -> PurePosixPath:
    return module.parent if len(module.parts) > 2 else module


def _paths_imported(tree: ast.Module, root: Path) -> Iterator[PurePosixPath]:
    """Yield the paths of modules of ours that are imported: for `from fedgate.x import y` that of `x.y` where it is a
    module, else that of `x`.
    """
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
            module = PurePosixPath((node.module or "").removeprefix(NAME).replace(".", "/"))
            for inner in (module / alias.name for alias in node.names):
                is_module = (root / inner).is_dir() or (root / inner.with_suffix(".py")).is_file()
                yield inner if is_module else module


def misplaced(root: Path, packages: Iterable[str]) -> Iterator[str]:
    """Yield folders of tests that mirror no folder of the product."""
    for package in packages:
        for folder in sorted({path.parent for path in (root / "tests" / package).rglob("test_*.py")}):
            if not (root / folder.relative_to(root / "tests")).is_dir():
                where = folder.relative_to(root).as_posix()
                yield f"{where}:1: the product has no such folder; tests lie where what they test lies"


def version_faults(changelog: str, pyproject: str) -> Iterator[str]:
    wanted = tomllib.loads(pyproject)["project"]["version"]
    releases = [(n, line) for n, line in enumerate(changelog.splitlines(), start=1) if line.startswith("## ")]
    line, top = releases[0] if releases else (1, "no release")
    if not re.match(rf"## \[?{re.escape(wanted)}\]? ", top):
        yield f"CHANGELOG.md:{line}: {top!r} is on top, but pyproject.toml says {wanted}; tell what it brings"


def untyped(root: Path, packages: Iterable[str]) -> Iterator[str]:
    for package in packages:
        if not (root / package / "py.typed").is_file():
            yield f"{package}/py.typed:1: missing, so users' type checkers ignore our types; add the empty file"


def crowded(root: Path, packages: Iterable[str]) -> Iterator[str]:
    """Yield folders with more modules than one can keep in mind, and those of which their list says something else."""
    page = (root / "docs" / "reference" / "folders.md").read_text("utf-8")
    for package in packages:
        for folder in sorted({path.parent for path in (root / package).rglob("*.py")}):
            count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
            if count > MODULES_MAX:
                yield f"{name_of(folder)}:1: {count} modules, at most {MODULES_MAX}; make a folder for some"
            text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
            sentence = " ".join(text.partition("\n\n")[0].split())
            is_listed = not name_of(folder).startswith(STUDIES)  # each study says what it is in its report
            if is_listed and f"| `{name_of(folder)}/` | {sentence} |" not in page:
                yield f"docs/reference/folders.md:1: expected a row for {name_of(folder)}/ that says: {sentence}"


def named_by_a_noun(files: Iterable[Source]) -> Iterator[tuple[bool, str]]:
    """Yield for each function whether its name says what it returns and not what it does, and where it is. Properties
    are left out; so are special methods, and what returns the same record changed (`with_item`, `without`), for it is
    read behind the record.
    """
    for file in files:
        for node in nodes(file.tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                first = node.name.strip("_").partition("_")[0]
                is_property = any("property" in ast.dump(one) for one in node.decorator_list)
                if not is_property and first not in OF_A_COPY:
                    yield first not in VERBS | PREDICATES, f"{file.path}:{node.lineno}: {node.name}"


def told(faults: Iterable[str]) -> str:
    return "".join(f"\n{fault}" for fault in faults)


def test_no_file_names_a_path_of_one_machine() -> None:
    faults: list[str] = []
    for path in walk(ROOT):
        raw = path.read_bytes()
        if b"\0" not in raw:
            faults += machine_paths(name_of(path), raw.decode("utf-8", errors="replace"))
    assert not faults, told(faults)


@pytest.mark.soak
def test_every_file_in_tests_takes_part() -> None:
    faults = list(uncollected((name_of(path) for path in walk(ROOT / "tests")), sources()))
    assert not faults, told(faults)


def test_every_algorithm_has_a_test_and_a_source() -> None:
    faults = list(algorithm_faults(ALGORITHMS, ROOT / "models" / "federated", ROOT / "tests"))
    assert not faults, told(faults)


def test_the_changelog_tells_of_this_version() -> None:
    faults = list(version_faults(*((ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "pyproject.toml"))))
    assert not faults, told(faults)


def test_every_package_ships_its_types() -> None:
    faults = list(untyped(ROOT, PACKAGES))
    assert not faults, told(faults)


def test_no_folder_is_crowded_and_their_list_is_true() -> None:
    faults = list(crowded(ROOT, PACKAGES))
    assert not faults, told(faults)


def test_functions_of_the_services_begin_with_a_verb() -> None:
    """Of few the name stays what they return, where the field names it so: `topic`, `status`, `severity`, `main`."""
    found = list(named_by_a_noun(file for file in sources() if file.package in SERVICES))
    faults = [where for is_noun, where in found if is_noun]
    assert len(faults) <= NOUNS_SHARE_MAX * len(found), told(faults)


def test_a_function_that_is_named_by_a_noun_is_found() -> None:
    text = "def make_key(): ...\ndef _key(): ...\nclass A:\n    def is_b(self): ...\n    def without(self): ..."
    assert [is_noun for is_noun, _ in named_by_a_noun([parse("config/x.py", text)])] == [False, True, False]


def test_nothing_in_the_wheel_imports_a_study() -> None:
    wrong = [
        f"{file.path}:{line}: it imports {module}, which is in a clone and not in the wheel"
        for file in sources()
        if not file.path.startswith((STUDIES, "tests/"))
        for line, module in imported(file.tree, file.package)
        if f"{module.replace('.', '/')}/".startswith(STUDIES)
    ]
    assert not wrong, told(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_of_a_package_imports_itself_by_way_of_others(package: str) -> None:
    faults = list(circles(folders_imported([file for file in sources() if file.package == package], ROOT)))
    assert not faults, told(faults)


def test_a_circle_of_folders_or_of_files_beside_them_is_found(tmp_path: Path) -> None:
    texts = {
        "a/b/x.py": "from fedgate.a.c.y import f",
        "a/c/y.py": "from fedgate.a.b import x",
        "a/c/v.py": "from fedgate.a.c import y",
        "a/z.py": "from fedgate.a import w",
        "a/w.py": "from fedgate.a.d import u",
        "a/d/u.py": "from fedgate.a.z import LENGTH",
        "a/t.py": "from fedgate.a import w, z",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    imports = folders_imported([parse(*file) for file in texts.items()], tmp_path)
    assert [fault.split(":")[0] for fault in circles(imports)] == ["a/b", "a/c", "a/d", "a/w", "a/z"]


def test_tests_lie_where_what_they_test_lies() -> None:
    faults = list(misplaced(ROOT, PACKAGES))
    assert not faults, told(faults)


def test_a_folder_of_tests_that_mirrors_nothing_is_caught(tmp_path: Path) -> None:
    for folder in ("config/old", "config/new"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_x.py").touch()
    (tmp_path / "config" / "new").mkdir(parents=True)
    assert [fault.split(":")[0] for fault in misplaced(tmp_path, ("config",))] == ["tests/config/old"]


def test_a_machine_path_is_caught() -> None:
    text = "fine\nlog = '/" + "home/someone/log'\n# https://example.org/home/page is a place on the net\n"
    assert [fault.split(": ")[0] for fault in machine_paths("docs/x.md", text)] == ["docs/x.md:2"]


def test_an_uncollected_file_is_caught() -> None:
    files = [
        "tests/test_a.py",
        "tests/conftest.py",
        "tests/oracle.py",
        "tests/peer.py",
        "tests/bench_b.py",
        "tests/golden/x.bin",
        "tests/x.bin",
    ]
    parsed = [parse("tests/test_a.py", "from tests.oracle import slow\nrun('-m', 'tests.peer')")]
    assert [fault.split(":")[0] for fault in uncollected(files, parsed)] == ["tests/bench_b.py", "tests/x.bin"]


def test_an_algorithm_without_test_source_or_listing_is_caught(tmp_path: Path) -> None:
    folder, tests = tmp_path / "federated", tmp_path / "tests"
    for made in (folder, tests):
        made.mkdir()
    (folder / "forgotten.py").write_text("def forgotten(feature_count: int) -> Algorithm: ...\n")
    # This module stands in for the module of an algorithm: its docstring cites nothing.
    faults = [fault.split(": ")[1].split(";")[0] for fault in algorithm_faults({"some-rule": told}, folder, tests)]
    assert faults == [
        "some-rule has no test_some_rule.py in tests",
        "the docstring names no source",
        "forgotten is not in ALGORITHMS",
    ]
    (tests / "test_some_rule.py").touch()
    (folder / "forgotten.py").unlink()
    assert len(list(algorithm_faults({"some-rule": told}, folder, tests))) == 1


def test_a_version_that_the_changelog_does_not_tell_of_is_caught() -> None:
    pyproject = '[project]\nversion = "0.2.0"\n'
    assert not list(version_faults("# Changelog\n\n## [0.2.0] - 2030-01-01\n\n## [0.1.0] - 2029-01-01\n", pyproject))
    for changelog in ("", "# Changelog\n\n## [0.1.0] - 2029-01-01\n", "## [0.2.0.1] - 2030-01-01\n"):
        assert len(list(version_faults(changelog, pyproject))) == 1


def test_a_package_without_py_typed_is_caught(tmp_path: Path) -> None:
    (tmp_path / "typed").mkdir()
    (tmp_path / "typed" / "py.typed").touch()
    assert [fault.split(":")[0] for fault in untyped(tmp_path, ["typed", "untyped"])] == ["untyped/py.typed"]
