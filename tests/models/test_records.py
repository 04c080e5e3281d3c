"""A changed copy is what `dataclasses.replace` makes of any dataclass of ours, also where it takes the short way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import pytest


@dataclass(frozen=True)
class Plain:
    one: int = 1
    many: tuple[int, ...] = field(default=(1, 2))


@dataclass(frozen=True, slots=True)
class Slotted:
    one: int = 1
    two: int = 2


@dataclass(frozen=True)
class Summed:
    one: int
    two: int

    @cached_property
    def total(self) -> int:
        return self.one + self.two


def test_a_copy_differs_only_in_what_was_changed() -> None:
    before = Plain()
    after = replace(before, one=5)
    assert (before, after) == (Plain(), Plain(5)) and after.many is before.many
    assert replace(Slotted(), two=3) == Slotted(1, 3)


def test_a_copy_does_not_take_over_what_was_computed_from_other_fields() -> None:
    before = Summed(1, 2)
    assert before.total == 3
    assert replace(before, two=10).total == 11


@pytest.mark.parametrize("record", [Plain(), Slotted()])
def test_a_name_that_is_no_field_is_refused(record: Plain | Slotted) -> None:
    with pytest.raises(TypeError, match="three"):
        replace(record, three=3)  # type: ignore[call-arg]  # which is what is tried here
