"""Goal: the algorithm that the page on extending shows keeps every law that a registered one must keep.

Method: the page's own code, registered for this test, and each of the laws.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator

import pytest

from fedgate.models.federated import ALGORITHMS
from tests.laws import test_laws
from tests.project.test_docs import blocks
from tests.support.exchanges import Trained
from tests.support.syntax import ROOT

LAWS = {
    name: law
    for name, law in inspect.getmembers(test_laws, inspect.isfunction)
    if name.startswith("test_") and [*inspect.signature(law).parameters] == ["trained"]
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """The algorithm of the page after a training, registered while the laws look at it."""
    (block,) = blocks(ROOT / "docs" / "reference" / "extend.md", "python")
    folder = tmp_path_factory.mktemp("extend")
    (folder / "shown_on_the_page.py").write_text(block, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        page = importlib.import_module("shown_on_the_page")
        patch.setitem(ALGORITHMS, "class-means", page.class_means)
        yield test_laws.trained_with("class-means", {})


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_example_keeps_the_law(shown: Trained, law: Callable[[Trained], None]) -> None:
    law(shown)
