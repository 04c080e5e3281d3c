"""What a gateway does when the cloud says what cannot be, or somebody's numbers could wrap: it sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, Array, Arrays, generator
from fedgate.models.federated.protocol.algorithm import RoundFailedError
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.secure_aggregation import client
from fedgate.models.federated.secure_aggregation.options import Roster, RosterError, prefixed, split
from fedgate.models.federated.secure_aggregation.ring import RingError
from fedgate.models.federated.secure_aggregation.wrapper import Masking, with_secure_aggregation
from tests.support.masked_rounds import (
    CONFIRM,
    INPUT,
    SHARES,
    UNMASK,
    Round,
    adding,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)

SIZE = 30
DATA = rows_of(names_of(7), SIZE)
ALGORITHM = masked_adding(SIZE)
WHO = "gateway-001"


@pytest.fixture(scope="module")
def made() -> Round:
    return took_part(ALGORITHM, DATA)


def answer(
    made: Round,
    step: int,
    name: str,
    shared: Arrays,
    data: Arrays | None = None,
    lists: Mapping[int, Arrays] = MappingProxyType({}),
) -> Arrays:
    """Return what a gateway answers in a step of a round to what the cloud shares, having gone along until then; in
    some steps before, the cloud shared something else with it (`lists`).
    """
    own: Arrays = {}
    for at in range(step + 1):
        server = made.servers[at]
        told = {**(data or DATA[name]), "secret": secret_of(name, server.round_index)}
        own, update = ALGORITHM.phases[at].train(
            shared if at == step else lists.get(at, server.global_state),
            own,
            told,
            generator(3, server.round_index, name),
        )
    return update


def test_a_roster_without_me_is_answered_by_silence(made: Round) -> None:
    shared = dict(made.servers[SHARES].global_state)
    mine = made.places[WHO]
    without = {name: np.delete(array, mine, axis=0) for name, array in shared.items()}
    assert answer(made, SHARES, WHO, shared)
    assert answer(made, SHARES, WHO, without) == {}


Cheat = Callable[[Arrays, int], Arrays]
ROSTERS: dict[str, Cheat] = {
    "my key twice": lambda told, mine: {
        name: np.concatenate([keys, keys[mine : mine + 1]]) for name, keys in told.items()
    },
    "one key for two purposes": lambda told, mine: told | {"channel": told["agreement"]},
    "me and one other": lambda told, mine: {name: keys[[mine, (mine + 1) % 7]] for name, keys in told.items()},
    "fewer of one kind": lambda told, mine: told | {"channel": told["channel"][1:]},
    "keys too short": lambda told, mine: {name: keys[:, 1:] for name, keys in told.items()},
    "numbers": lambda told, mine: {name: keys.astype(np.float64) for name, keys in told.items()},
    "nothing": lambda told, mine: {},
}


@pytest.mark.parametrize("cheat", ROSTERS)
def test_a_roster_that_cannot_be_is_refused(made: Round, cheat: str) -> None:
    told = split(made.servers[SHARES].global_state)[1]
    changed = ROSTERS[cheat](told, made.places[WHO])
    with pytest.raises(RosterError, match=r"roster: expected .*got"):
        answer(made, SHARES, WHO, {f"masking.{name}": array for name, array in changed.items()})


def pretend(made: Round, step: int, name: str, found: Array) -> Arrays:
    return {**made.servers[step].global_state, f"masking.{name}": found}


def test_no_sum_of_fewer_than_asked_for_is_made_in_a_part_of_the_graph_that_is_cut_off() -> None:
    """Six of nine are left, in pairs that share masks with each other alone: their sums could be read pair by pair.
    The cloud fails the round, and gateways that it asks all the same refuse. Such options are refused to begin with.
    """
    options = {"neighbours": 2, "fewest": 3, "threshold": 0.6}
    with pytest.raises(ValueError, match=r"threshold 0.6 of 2 neighbours and itself given, which is 2 gateways, expec"):
        Masking.model_validate(options)
    loose, data = Masking.model_construct(**{**Masking(fewest=3).model_dump(), **options}), rows_of(names_of(9), SIZE)
    algorithm = with_secure_aggregation(adding(SIZE), loose)
    whole = took_part(algorithm, data)
    roster, ring = Roster.of(split(whole.servers[SHARES].global_state)[1], loose), [0]
    while len(ring) < 9:
        ring.append(next(place for place in roster.neighbours_of(ring[-1]) if place not in ring))
    stayed = [name for name, place in whole.places.items() if place not in ring[2::3]]

    def comes(step: int, name: str) -> bool:
        return step < INPUT or name in stayed

    with pytest.raises(RoundFailedError, match=r"at least 3 gateways wherever masks join them, got a group of 2"):
        took_part(algorithm, data, comes=comes)
    made = took_part(algorithm, data, comes=comes, goes_on=True)
    present = np.array(sorted(whole.places[name] for name in stayed))
    told = {"round": whole.servers[INPUT].global_state["masking.round"], "present": present}
    for name in stayed:
        with pytest.raises(RosterError, match=r"masks with each other, got 6, 0 of them others, in groups down to 2"):
            algorithm.phases[CONFIRM].train(prefixed(told), made.own[name], data[name], generator(3, 0, name))


def test_no_input_is_sent_where_too_few_could_hide_it(made: Round) -> None:
    mine = made.places[WHO]
    for others in ([], [(mine + 1) % 7]):
        few = np.array(sorted([mine, *others]))
        with pytest.raises(RosterError, match=r"posted: expected shares of at least 3 gateways .*got"):
            answer(made, INPUT, WHO, pretend(made, INPUT, "posted", few))


def test_nothing_is_revealed_where_too_few_inputs_are_in_the_sum(made: Round) -> None:
    mine = made.places[WHO]
    for others in ([], [(mine + 1) % 7]):
        few = np.array(sorted([mine, *others]))
        with pytest.raises(RosterError, match=r"present: expected at least 3 .*got"):
            answer(made, CONFIRM, WHO, pretend(made, CONFIRM, "present", few))


@pytest.mark.parametrize(
    "found", [[0, 0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [-1, 0, 1, 2, 3, 4, 5, 6], [*range(8)]]
)
@pytest.mark.parametrize(("step", "name"), [(INPUT, "posted"), (CONFIRM, "present"), (UNMASK, "confirmed")])
def test_places_that_cannot_be_are_refused(made: Round, step: int, name: str, found: list[int]) -> None:
    with pytest.raises(RosterError, match=rf"{name}: expected rising places"):
        answer(made, step, WHO, pretend(made, step, name, np.array(found)))


def test_words_of_another_round_are_answered_by_silence(made: Round) -> None:
    for step in (INPUT, CONFIRM, UNMASK):
        assert answer(made, step, WHO, pretend(made, step, "round", np.zeros(32, dtype=np.uint8))) == {}


def test_who_is_declared_a_drop_out_signs_nothing(made: Round) -> None:
    others = np.array(sorted(set(range(7)) - {made.places[WHO]}))
    assert answer(made, CONFIRM, WHO, pretend(made, CONFIRM, "present", others)) == {}


def test_nothing_is_revealed_where_others_were_told_of_other_survivors(made: Round) -> None:
    """A cloud that tells two parts two lists gets signatures for both, and of neither enough for anybody."""
    listed = made.servers[CONFIRM].global_state["masking.present"]
    lists = {name: listed[:-1] if made.places[name] < 3 else listed[1:] for name in DATA}
    signed = {name: answer(made, CONFIRM, name, pretend(made, CONFIRM, "present", lists[name])) for name in DATA}
    signed = {name: update for name, update in signed.items() if update}  # who was left out signs nothing
    confirmed = sorted(signed, key=lambda name: made.places[name])
    told = {"confirmed": np.array([made.places[name] for name in confirmed])}
    told["signature"] = np.concatenate([signed[name]["signature"] for name in confirmed])
    shared = {**made.servers[UNMASK].global_state, **prefixed(told)}
    for name in confirmed:
        with pytest.raises(RosterError, match=r"confirmed: expected 5 of those who hold shares .* got [34]"):
            answer(made, UNMASK, name, shared, lists={CONFIRM: pretend(made, CONFIRM, "present", lists[name])})


@pytest.mark.parametrize("shape", [(6, 64), (7, 63), (0,)])
def test_signatures_that_are_not_one_for_each_are_refused(made: Round, shape: tuple[int, ...]) -> None:
    with pytest.raises(RosterError, match="signature: expected 7 of 64 bytes"):
        answer(made, UNMASK, WHO, pretend(made, UNMASK, "signature", np.zeros(shape, dtype=np.uint8)))


def test_boxes_that_are_not_one_for_each_are_refused(made: Round) -> None:
    for boxes in (made.servers[UNMASK].global_state["masking.sealed"][1:], np.zeros(0, dtype=np.uint8)):
        with pytest.raises(RosterError, match="sealed: expected one row of boxes"):
            answer(made, UNMASK, WHO, pretend(made, UNMASK, "sealed", boxes))


@pytest.mark.parametrize("value", [8.8e9, -1e13, np.nan, np.inf])
def test_a_value_that_could_wrap_is_refused_before_a_mask_is_drawn(
    made: Round, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*arguments: object, **options: object) -> None:
        raise AssertionError("a mask was drawn")

    monkeypatch.setattr(client, "add_mask", drawn)
    rows = {FEATURES: np.where(np.arange(SIZE) == 4, value, 1.0)[None]}
    with pytest.raises(
        RingError if np.isfinite(value) else UpdateError, match=r"expected .*(given|got)|given, expected"
    ):
        answer(made, INPUT, WHO, made.servers[INPUT].global_state, rows)
    with pytest.raises(AssertionError, match="a mask was drawn"):
        answer(made, INPUT, WHO, made.servers[INPUT].global_state)


def test_a_range_too_large_for_the_cohort_is_told_before_anybody_trains() -> None:
    with pytest.raises(
        RingError, match=r"masking.range: 1e\+13 given for 7 gateways, expected up to .*masking.quantum"
    ):
        took_part(masked_adding(SIZE, range=1e13), DATA)
