"""Style as a test: import arrows, purity, sizes and manners, read from the syntax tree of every file of ours.

A rule is a function from one parsed file to the lines that break it and what to do about each; `test_tidy_rules.py`
feeds every rule snippets it must catch and near misses it must not. What concerns the project as a whole is in
`test_tidy_project.py`. The two numbers are ratchets: lower them when the tree allows it, never raise them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from fedgate.firmware_sim import children
from tests.support.syntax import (
    PACKAGES,
    ROOT,
    Function,
    Source,
    aliases,
    calls,
    comments,
    definitions,
    dotted,
    imported,
    nodes,
    run_on_import,
    sources,
)
from tests.support.waiting import PATIENCE_S

FILE_LINES_MAX = 600  # the length follows the idea: one of 400 lines beats five files that call each other
FUNCTION_LINES_MAX = 50

# Whom each package may import; firmware_sim and tests stand above all others and may import anyone.
ARROWS = {
    "models": {"models"},
    "config": {"config", "models"},
    "gateway_agent": {"gateway_agent", "config", "models"},
    "cloud_aggregator": {"cloud_aggregator", "config", "models"},
}
# A researcher imports from `fedgate.models` what counts bytes and reads files, so its names lead up the arrows: each is
# looked up when asked for, and importing the package alone loads nothing.
LEADS_UP = {"models/__init__.py": {"firmware_sim"}}
PAGES = ("config/web/", "gateway_agent/web/")  # in a process of its own, which a gateway need not have
ONLY_IN = {
    "paho": ("config/transport/", "firmware_sim/broker.py", "tests/"),
    "torch": ("models/detectors/recurrent/torch_training.py",),
    "prometheus_client": ("cloud_aggregator/metrics/", "cloud_aggregator/runtime/metrics_server.py", "tests/"),
    "starlette": ("cloud_aggregator/pki/enrolment_server.py", "cloud_aggregator/web/", *PAGES),
    "uvicorn": ("cloud_aggregator/pki/enrolment_server.py", "config/web/"),
}
# What a function, a class, an argument or a variable of the services is never called.
NAMED_PLAINLY = {"config", "gateway_agent", "cloud_aggregator"}
PRIVATE_WORDS = {"told", "tells", "tell", "said", "says", "heard", "hears", "begun", "gone", "life", "lives", "beaten"}
PRIVATE_WORDS |= {"trouble", "troubles", "befell", "mends", "usual", "restored"}
NAMED_AS_EVER = ("firmware_sim/studies/",)
# A function does something, so its name does not begin with what something has become.
BECOME = {"begun", "built", "drawn", "found", "given", "held", "kept", "known", "lost", "made", "meant", "seen"}
BECOME |= {"sent", "shown", "spoken", "taken", "written"}
ENDS_LIKE_ONE = {"embed", "exceed", "feed", "need", "proceed", "seed"}  # and is a verb
WORDS_OF_A_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
ON_A_GATEWAY = ("models/", "config/", "gateway_agent/")
BASE_INSTALL = {"numpy", "onnxruntime", "paho", "pydantic", "cryptography"}
# Modules that nothing on a gateway imports outside a training.
BEYOND_BASE_INSTALL = {
    "models/detectors/base/graph.py": {"onnx"},
    "models/detectors/recurrent/torch_training.py": {"torch"},
    **{folder: {"starlette", "uvicorn", "jinja2", "markupsafe"} for folder in PAGES},
}
NEVER_IN_THE_AGENT = {
    "scipy",
    "sklearn",
    "torch",
    "onnx",
    "matplotlib",
    "pyarrow",
    "sqlalchemy",
    "amqtt",
    "starlette",
    "uvicorn",
    "jinja2",
    "markupsafe",
}

# A component takes its own record, the context and values: it imports no other component, not even its record. Nor
# does what several of them use.
COMPONENTS = (
    *(f"gateway_agent/{name}" for name in ("deployment/", "downloads", "monitor/", "outbox/", "training/", "trust/")),
    *(f"gateway_agent/{name}" for name in ("pipeline/", "samples/", "sources/")),
    *(f"cloud_aggregator/{name}" for name in ("access/", "alarms/", "notifications/", "presence")),
    *(f"cloud_aggregator/{name}" for name in ("releases/", "rounds/", "samples/")),
)
TO_COMPONENTS = (
    *(f"gateway_agent/{name}" for name in ("context", "events", "feature_row", "pipeline", "sources", "write_budget")),
    *(f"cloud_aggregator/{name}" for name in ("attempts", "availability", "context", "enrolment", "events", "health")),
    *(f"cloud_aggregator/{name}" for name in ("limits", "names", "notifications")),
)
MACHINES = {"gateway_agent", "cloud_aggregator"}  # pure but for their commands and the folders that do the I/O
DOES_IO = {"runtime", "storage", "commands", "pki", "backup", "web"}
COMMANDS = "__main__.py"


def _does_io(path: PurePosixPath) -> bool:
    return path.name == COMMANDS or not DOES_IO.isdisjoint(path.parts)


IMPURE_MODULES = re.compile(
    r"(asyncio|glob|http|logging|multiprocessing|os|pathlib|random|secrets|select|shutil|socket|sqlite3|ssl|subprocess"
    r"|tempfile|threading|time|urllib)(\.|$)"
)
IMPURE_CALLS = re.compile(
    r"open|print|input|io\.open|uuid\.uuid[14]|datetime\.(date|datetime)\.(now|today|utcnow)"
    r"|numpy\.(load|save|savez|savez_compressed|loadtxt|savetxt|genfromtxt|fromfile|memmap)"
)
GLOBAL_RANDOMNESS = re.compile(
    r"numpy\.random\.(?!(Generator|default_rng|SeedSequence|BitGenerator|PCG64|PCG64DXSM|Philox|SFC64)$)\w+"
)
TOO_BROAD = {"Exception", "BaseException"}
CONTAINS = "cloud_aggregator/attempts.py"  # where an error of ours stops the one whose message has found it
STARTS_A_PROCESS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
STARTS_A_PROCESS |= {"os.system"}
NOT_INSTALLED = ("tests.", "pip", "venv", "distributed.")  # with us: modules of the tests, and other people's
EXEMPTS_A_FILE = re.compile(r"#\s*mypy:|#\s*(ruff|flake8):\s*noqa")
EXEMPTS_A_LINE = re.compile(r"#\s*(type:\s*ignore(\[[^\]]*\])?|noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?)")
PROMISES = re.compile(r"\b(TODO|FIXME|XXX)\b")
TWO_WORDS = re.compile(r"[a-z]{2,}\W+.*[a-z]{2,}")

Finding = tuple[int, str]  # line, what is wrong and what to do
Rule = Callable[[Source], Iterator[Finding]]


def arrows(file: Source) -> Iterator[Finding]:
    allowed = ARROWS.get(file.package, {*PACKAGES, "tests"})
    when_asked = LEADS_UP.get(file.path, set())
    at_once = {line for one in run_on_import(file.tree.body) for line, _ in imported(one, file.package)}
    for line, module in imported(file.tree, file.package):
        package = module.partition(".")[0]
        if package in when_asked and line not in at_once:
            continue
        if package in (*PACKAGES, "tests") and package not in allowed:
            yield line, f"{file.package} must not import {package}; move what both need down into models or config"


def components(file: Source) -> Iterator[Finding]:
    own = next((folder for folder in COMPONENTS if file.path.startswith(folder)), None)
    if own is None:
        return
    for line, module in imported(file.tree, file.package):
        name = module.replace(".", "/")
        if name.startswith(tuple(MACHINES)) and not f"{name}/".startswith((own, *(f"{one}/" for one in TO_COMPONENTS))):
            yield line, f"{own} is a component of its own; take what it needs of {module} as an argument"


def one_name(file: Source) -> Iterator[Finding]:
    for node in nodes(file.tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            named = [node.module or ""]
        else:
            continue
        for module in named:
            if module.partition(".")[0] in PACKAGES:
                yield node.lineno, f"import fedgate.{module}: under two names a module would be loaded twice"


def third_party(file: Source) -> Iterator[Finding]:
    for line, module in imported(file.tree, file.package):
        places = ONLY_IN.get(module.partition(".")[0])
        if places and not file.path.startswith(places):
            yield line, f"{module} may be imported only in {', '.join(places)}; call a function of that module"


def base_install(file: Source) -> Iterator[Finding]:
    if not file.path.startswith(ON_A_GATEWAY):
        return
    beyond = next((names for path, names in BEYOND_BASE_INSTALL.items() if file.path.startswith(path)), set[str]())
    allowed = BASE_INSTALL | beyond | {*PACKAGES} | sys.stdlib_module_names
    for statement in run_on_import(file.tree.body):
        for line, module in imported(statement, file.package):
            if module.partition(".")[0] not in allowed:
                yield line, f"{module} is not in a gateway's base install; import it in the function that needs it"


def purity(file: Source) -> Iterator[Finding]:
    if file.package != "models" and (file.package not in MACHINES or _does_io(PurePosixPath(file.path))):
        return
    for line, module in imported(file.tree, file.package):
        if IMPURE_MODULES.match(module):
            yield line, f"pure code must not import {module}; take time, randomness and bytes as arguments"
    for called, call in calls(file.tree):
        if IMPURE_CALLS.fullmatch(called):
            yield call.lineno, f"pure code must not call {called}; take the value as an argument or return an effect"
        elif called == "numpy.random.default_rng" and not (call.args or call.keywords):
            yield call.lineno, "default_rng() draws its seed from the system; give it a seed or take a generator"


def global_randomness(file: Source) -> Iterator[Finding]:
    names = aliases(file.tree)
    for node in nodes(file.tree):
        if isinstance(node, ast.Attribute | ast.Name) and GLOBAL_RANDOMNESS.fullmatch(full := dotted(node, names)):
            yield node.lineno, f"{full} draws from the global generator; take a numpy.random.Generator as an argument"


def function_length(file: Source) -> Iterator[Finding]:
    for node in definitions(file.tree):
        if isinstance(node, Function):
            first = node.body[0]
            docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - docstring
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}; name a part of it"


def file_length(file: Source) -> Iterator[Finding]:
    length = len(file.text.splitlines())
    if length > FILE_LINES_MAX:
        yield length, f"{length} lines, at most {FILE_LINES_MAX}; split the file by what it is about"


def module_docstring(file: Source) -> Iterator[Finding]:
    if file.text.strip() and not ast.get_docstring(file.tree):
        yield 1, "no module docstring; say why the module exists"


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler only cleans up: what it caught goes on as it was."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def broad_errors(file: Source) -> Iterator[Finding]:
    if file.path == CONTAINS:
        return
    caught = [
        (node.lineno, node.type or ast.Name("BaseException"))  # which is what a bare except means
        for node in nodes(file.tree)
        if isinstance(node, ast.ExceptHandler) and not passes_on(node)
    ]
    for called, call in calls(file.tree):
        if called == "contextlib.suppress":
            caught += [(call.lineno, error) for error in call.args]
    for line, errors in caught:
        if any(dotted(one, {}) in TOO_BROAD for one in (errors.elts if isinstance(errors, ast.Tuple) else [errors])):
            yield line, "catches every error, so also our own mistakes; name the errors that are expected here"


def bare_processes(file: Source) -> Iterator[Finding]:
    if file.package != "tests":
        return
    for called, call in calls(file.tree):
        if called in STARTS_A_PROCESS:
            yield call.lineno, f"{called} outlives tests that are killed, or holds them for ever; take children.run"


def children_of_ours(file: Source) -> Iterator[Finding]:
    """Yield commands `-m MODULE` that depend on the working directory: only what is in no wheel may be found there."""
    for node in nodes(file.tree):
        if not isinstance(node, ast.List | ast.Tuple | ast.Call):
            continue
        words = node.args if isinstance(node, ast.Call) else node.elts
        spoken = [ast.unparse(word).removeprefix("f").strip("'") for word in words]
        for before, word, module in zip(["", *spoken], spoken, spoken[1:], strict=False):
            is_kept = module.startswith("fedgate.") and before == "-P"
            if word == "-m" and not is_kept and not module.startswith(NOT_INSTALLED):
                yield node.lineno, f"-m {module}: start it as sys.executable, '-P', '-m', 'fedgate...', wherever one is"


def plain_names(file: Source) -> Iterator[Finding]:
    if file.package not in {*NAMED_PLAINLY, "models", "firmware_sim"} or file.path.startswith(NAMED_AS_EVER):
        return
    stored = {node.target for node in nodes(file.tree) if isinstance(node, ast.AnnAssign)}  # a field may be a column's
    for node in nodes(file.tree):
        if isinstance(node, Function | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in stored:
            name = node.id
        else:
            continue
        words = {word.lower() for word in WORDS_OF_A_NAME.findall(name)}
        if private := sorted(words & PRIVATE_WORDS):
            yield node.lineno, f"{name}: {private[0]!r} is a word of our own; take the field's (docs/architecture.md)"


def verbs(file: Source) -> Iterator[Finding]:
    if file.package not in NAMED_PLAINLY:
        return
    for node in file.tree.body:
        if isinstance(node, Function):
            first = node.name.lstrip("_").partition("_")[0]
            if first in BECOME or (first.endswith("ed") and first not in ENDS_LIKE_ONE):
                yield node.lineno, f"{node.name}: {first!r} says what became of something; begin with a verb"


def promises(file: Source) -> Iterator[Finding]:
    if not PROMISES.search(file.text):  # finding the comments of a file takes long
        return
    docstrings = [(node.body[0].lineno, text) for node in definitions(file.tree) if (text := ast.get_docstring(node))]
    for line, text in [*comments(file.text), *docstrings]:
        if found := PROMISES.search(text):
            yield line, f"{found[0]} promises instead of doing; do it now or leave it out"


def exemptions(file: Source) -> Iterator[Finding]:
    if not (EXEMPTS_A_FILE.search(file.text) or EXEMPTS_A_LINE.search(file.text)):
        return
    for line, text in comments(file.text):
        if EXEMPTS_A_FILE.search(text):
            yield line, "exempts the whole file from a check; mend the code or exempt one line with its reason"
        elif (found := EXEMPTS_A_LINE.search(text)) and not TWO_WORDS.search(text, found.end()):
            yield line, f"{found[0]!r} without a reason; mend the code or write why after it"


RULES: dict[str, Rule] = {
    "verbs": verbs,
    "arrows": arrows,
    "components": components,
    "one_name": one_name,
    "third_party": third_party,
    "base_install": base_install,
    "purity": purity,
    "global_randomness": global_randomness,
    "function_length": function_length,
    "file_length": file_length,
    "module_docstring": module_docstring,
    "broad_errors": broad_errors,
    "bare_processes": bare_processes,
    "children_of_ours": children_of_ours,
    "plain_names": plain_names,
    "promises": promises,
    "exemptions": exemptions,
}


def test_every_file_keeps_every_rule() -> None:
    """In one test, so that one process parses the files and not each that runs tests."""
    found = [
        f"\n{file.path}:{line}: {message} ({name})"
        for file in sources()
        for name, rule in RULES.items()
        for line, message in rule(file)
    ]
    assert not found, "".join(found)


def loaded_by(module: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter holds after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = children.run([sys.executable, "-c", code], PATIENCE_S, text=True, cwd=ROOT)
    assert run.returncode == 0, f"{module} cannot be imported:\n{run.stderr}"
    return set(run.stdout.split())


def test_the_agent_never_loads_what_only_training_or_the_cloud_needs() -> None:
    heavy = sorted(
        loaded_by("fedgate.gateway_agent.__main__, fedgate.gateway_agent.runtime.agent") & NEVER_IN_THE_AGENT
    )
    assert not heavy, (
        f"gateway_agent/__main__.py:1: importing it loads {heavy}; import them in the functions that train"
    )
