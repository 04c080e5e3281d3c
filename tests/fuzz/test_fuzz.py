"""Whatever the bytes: taken, or refused with the declared error. Hypothesis in CI; atheris, where it installs, for longer
(`make fuzz`). A crash that either finds becomes a line of `KNOWN`, so that it stays mended.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import broken
from tests.fuzz.target import Target, attempt
from tests.fuzz.targets import NAMES, target


@pytest.mark.parametrize("name", NAMES)
def test_sound_bytes_are_taken(name: str) -> None:
    made = target(name)
    taken = [attempt(made, seed) for seed in made.seeds]
    assert any(taken), "no seed is taken, so mutations of them reach nothing"


@pytest.mark.parametrize("name", NAMES)
def test_garbage_gives_the_declared_error(name: str) -> None:
    made = target(name)

    @settings(max_examples=made.examples, suppress_health_check=list(HealthCheck))
    @given(broken(made.seeds))
    def law(data: bytes) -> None:
        attempt(made, data)

    law()


def test_another_error_than_the_declared_is_a_crash() -> None:
    made = Target(lambda data: {b"sound": 1}[data], (ValueError,), (b"sound",))
    assert attempt(made, b"sound")
    with pytest.raises(KeyError):

        @settings(max_examples=50, database=None)
        @given(st.just(b"sound") | broken(made.seeds))
        def law(data: bytes) -> None:
            attempt(made, data)

        law()
