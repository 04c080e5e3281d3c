"""An algorithm built as a settings file builds it: what no file can give is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.wrappers.whitening import validated


def build_as_a_file(factory: Callable[..., Algorithm], feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm of a factory with settings as a file gives them, where a tuple is a list; so are defaults.

    Raises `AssertionError` where one of them is refused.
    """
    parameters = inspect.signature(factory).parameters.values()
    given = {one.name: one.default for one in parameters if isinstance(one.default, tuple)} | dict(settings)
    try:
        return validated(factory)(feature_count, **_as_lists(given))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise AssertionError(
            f"settings are taken from a file: {where}: {problem['msg']}, got {problem['input']!r:.80}; expected "
            "an annotation that takes it, of a tuple Listed[tuple[...]] (fedgate.models.options)"
        ) from None


def _as_lists(given: Any) -> Any:
    """Return settings with lists in place of tuples."""
    if isinstance(given, Mapping):
        return {key: _as_lists(value) for key, value in given.items()}
    return list(map(_as_lists, given)) if isinstance(given, list | tuple) else given
