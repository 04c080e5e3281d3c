"""Masked rounds in which somebody sends what he should not: gateways, or a cloud that says what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import SECRET, Arrays, generator
from fedgate.models.federated.protocol.algorithm import RoundFailedError, close_round
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.secure_aggregation.client import MASKED, SEALED, SHARES, STEPS, TOKEN
from fedgate.models.federated.secure_aggregation.wrapper import LeftOutWarning, ShareWarning
from tests.support.masked_rounds import (
    CONFIRM,
    INPUT,
    KEYS,
    QUANTUM,
    SUMMED,
    UNMASK,
    Damage,
    Round,
    expected_sum,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)
from tests.support.masked_rounds import (
    SHARES as SHARING,
)

SIZE = 30
NAMES = names_of(7)
DATA = rows_of(NAMES, SIZE)
ALGORITHM = masked_adding(SIZE, threshold=0.51)  # of seven holders four can put a secret together
LIAR, OTHER, AWAY = NAMES[1], NAMES[3], NAMES[5]


@pytest.fixture(scope="module")
def made() -> Round:
    return took_part(ALGORITHM, DATA)


def only(step: int, name: str, change: Callable[[Arrays], Arrays]) -> Damage:
    def arrives(at: int, who: str, update: Arrays) -> Arrays:
        return change(update) if (at, who) == (step, name) else update

    return arrives


def check_sum(found: Round, names: list[str]) -> None:
    error = np.abs(found.server.global_state[SUMMED] - expected_sum(DATA, names)).max()
    assert error <= len(NAMES) * QUANTUM / 2.0 + 1e-12


def test_a_tampered_share_is_named_and_others_are_used() -> None:
    """Of all neighbours: of each the first three shares are tried first."""

    def change(update: Arrays) -> Arrays:
        return {**update, SHARES: np.where(np.arange(32) == 0, update[SHARES] ^ 1, update[SHARES]).astype(np.uint8)}

    last = took_part(ALGORITHM, DATA)
    liar = next(name for name, place in last.places.items() if place == 0)
    with pytest.warns(ShareWarning, match=r"wrong shares of place 0 from 0 \([0-9a-f]{8}\.\.\.\); left out"):
        found = took_part(ALGORITHM, DATA, arrives=only(UNMASK, liar, change))
    check_sum(found, NAMES)


def test_tampered_shares_of_a_drop_outs_key_are_found_too() -> None:
    liar = next(name for name, place in took_part(ALGORITHM, DATA).places.items() if place == 1 and name != AWAY)

    def change(update: Arrays) -> Arrays:
        return {**update, SHARES: update[SHARES][:, :, ::-1].copy()}

    with pytest.warns(ShareWarning, match="left out"):
        found = took_part(
            ALGORITHM,
            DATA,
            comes=lambda step, name: name != AWAY or step < INPUT,
            arrives=only(UNMASK, liar, change),
        )
    check_sum(found, [name for name in NAMES if name != AWAY])


@pytest.mark.soak
def test_several_who_lie_side_by_side_or_not_are_named_and_the_sum_is_right() -> None:
    """Wherever they are in the order in which shares are tried: half of what is beyond the threshold may lie."""
    names = names_of(21)
    algorithm, data = masked_adding(SIZE, threshold=0.6), rows_of(names, SIZE)  # 13 of 21
    places = took_part(algorithm, data).places
    liars = {name for name, place in places.items() if place in (0, 6, 12, 18)}

    def arrives(step: int, name: str, update: Arrays) -> Arrays:
        return {**update, SHARES: update[SHARES] ^ np.uint8(1)} if step == UNMASK and name in liars else update

    with pytest.warns(ShareWarning, match=r"wrong shares of place 0 from 0 .*, 6 .*, 12 .*, 18 .*; left out"):
        found = took_part(algorithm, data, arrives=arrives)
    error = np.abs(found.server.global_state[SUMMED] - expected_sum(data, names)).max()
    assert error <= len(names) * QUANTUM / 2.0 + 1e-12


def test_more_liars_than_the_shares_can_bear_fail_the_round_by_name() -> None:
    def arrives(step: int, name: str, update: Arrays) -> Arrays:
        return {**update, SHARES: update[SHARES] ^ np.uint8(1)} if step == UNMASK and name in NAMES[:5] else update

    with pytest.raises(
        RoundFailedError, match=r"expected 4 shares that give the secret of place 0 \([0-9a-f]{8}\.\.\.\)"
    ):
        took_part(ALGORITHM, DATA, arrives=arrives)


def test_shares_for_the_wrong_one_are_as_if_there_were_none() -> None:
    """A gateway mixes up whom it seals what for: nobody can open a box of it, so its secrets stay with itself."""

    def change(update: Arrays) -> Arrays:
        return {**update, SEALED: np.roll(update[SEALED], 1, axis=1)}

    with pytest.raises(RoundFailedError, match=r"expected 4 shares that give the secret of place \d .*, got 1"):
        took_part(ALGORITHM, DATA, arrives=only(SHARING, LIAR, change))


def test_boxes_that_were_damaged_for_a_few_are_survived() -> None:
    def change(update: Arrays) -> Arrays:
        boxes = update[SEALED].copy()
        boxes[:, :3] ^= 1
        return {**update, SEALED: boxes}

    check_sum(took_part(ALGORITHM, DATA, arrives=only(SHARING, LIAR, change)), NAMES)


def test_an_input_under_other_masks_than_were_shared_spoils_no_model() -> None:
    def change(update: Arrays) -> Arrays:
        return {**update, MASKED: update[MASKED] + np.uint64(2**63)}

    with pytest.raises(RoundFailedError, match="masked its input with other keys than it shared"):
        took_part(ALGORITHM, DATA, arrives=only(INPUT, LIAR, change))


@pytest.mark.parametrize("taken", ["agreement", "channel", "signer", "commitment", TOKEN, "all"])
def test_two_gateways_that_say_the_same_are_both_left_out_by_name(made: Round, taken: str) -> None:
    """Nobody can tell who took it from whom; those of others go on."""
    keys = made.updates[KEYS][OTHER]

    def change(update: Arrays) -> Arrays:
        return keys if taken == "all" else {**update, taken: keys[taken]}

    key = keys["agreement"][0, :4].tobytes().hex()
    with pytest.warns(LeftOutWarning, match=rf"{key}\.\.\..* are left out of this round: keys that another sent, too"):
        found = took_part(ALGORITHM, DATA, arrives=only(KEYS, LIAR, change))
    check_sum(found, [name for name in NAMES if name not in (LIAR, OTHER)])


def test_one_key_for_two_purposes_is_refused(made: Round) -> None:
    update = made.updates[KEYS][LIAR]
    with pytest.raises(
        UpdateError, match="expected agreement, channel, signer, commitment, token that differ, got one twice"
    ):
        ALGORITHM.phases[KEYS].admit(made.servers[KEYS], {**update, "channel": update["agreement"]})


def test_an_input_that_is_counted_twice_fails_the_round(made: Round) -> None:
    server, phase = made.servers[INPUT], ALGORITHM.phases[INPUT]
    updates = [phase.admit(server, update) for update in made.updates[INPUT].values()]
    total = Arrays()
    for update in [*updates, updates[2]]:
        total = phase.reducer.merge(total, update)
    with pytest.raises(RoundFailedError, match="got those of 7, up to 2 of one"):
        phase.advance(server, total)


@pytest.mark.parametrize("step", [SHARING, CONFIRM, UNMASK])
def test_rows_that_are_counted_twice_fail_the_round(made: Round, step: int) -> None:
    server, phase = made.servers[step], ALGORITHM.phases[step]
    updates = [phase.admit(server, update) for update in made.updates[step].values()]
    total = Arrays()
    for update in [*updates, updates[2]]:
        total = phase.reducer.merge(total, update)
    with pytest.raises(RoundFailedError, match="expected one answer from each place"):
        phase.advance(server, phase.reducer.closed(total))


def test_what_was_sent_in_another_round_is_refused(made: Round) -> None:
    following = took_part(ALGORITHM, DATA, server=made.server, own=made.own)
    for step in (SHARING, INPUT, CONFIRM, UNMASK):
        with pytest.raises(UpdateError, match="token: expected that of a gateway which began this round, got"):
            ALGORITHM.phases[step].admit(following.servers[step], made.updates[step][OTHER])


def test_nobody_can_speak_for_another(made: Round) -> None:
    """A token that was shown once proves nothing in the exchanges after it."""
    for step in (SHARING, INPUT, CONFIRM, UNMASK):
        for shown in range(step):
            forged = {**made.updates[step][LIAR], TOKEN: made.updates[shown][OTHER][TOKEN]}
            with pytest.raises(UpdateError, match="token: expected"):
                ALGORITHM.phases[step].admit(made.servers[step], forged)


@pytest.mark.parametrize("step", [INPUT, UNMASK])
def test_who_missed_an_exchange_is_refused_in_those_after_it(step: int) -> None:
    found = took_part(ALGORITHM, DATA, loses=lambda at, name: (at, name) == (step - 1, LIAR))
    honest = took_part(ALGORITHM, DATA)
    with pytest.raises(UpdateError, match="expected one of those who went along so far, got place"):
        ALGORITHM.phases[step].admit(found.servers[step], honest.updates[step][LIAR])
    assert LIAR not in found.updates[step]


def test_a_signature_of_other_survivors_is_refused(made: Round) -> None:
    update = made.updates[CONFIRM][LIAR]
    for wrong in (made.updates[CONFIRM][OTHER]["signature"], np.zeros((1, 64), dtype=np.uint8)):
        with pytest.raises(UpdateError, match=r"signature: expected that of place \d for those whose inputs"):
            ALGORITHM.phases[CONFIRM].admit(made.servers[CONFIRM], {**update, "signature": wrong})


@pytest.mark.parametrize("part", [1, 2, 255])
def test_a_part_in_a_total_that_nobody_keeps_is_refused(made: Round, part: int) -> None:
    update = {**made.updates[SHARING][LIAR], "part": np.array([part], dtype=np.uint8)}
    with pytest.raises(UpdateError, match="part: expected 0 to 0, got"):
        ALGORITHM.phases[SHARING].admit(made.servers[SHARING], update)


@pytest.mark.parametrize(
    "lie", [{SUMMED: np.ones(SIZE)}, {"rounds": np.ones(())}, {"masking.lost": np.zeros((1, 32), np.uint8)}]
)
def test_a_cloud_that_hands_out_two_models_can_read_neither_sum(lie: Arrays) -> None:
    """With a model of which it knows what comes back, it would take the updates of all but one off the sum."""
    server, own = ALGORITHM.start(generator(3, 0, "cloud")), {name: Arrays() for name in NAMES}
    opened = None
    with suppress(RoundFailedError):
        for step in range(STEPS):
            phase, total = ALGORITHM.phases[step], Arrays()
            for name in NAMES:
                lied = lie if step == INPUT and name != NAMES[2] else {}
                told = {**DATA[name], SECRET: secret_of(name, server.round_index)}
                rng = generator(3, server.round_index, name)
                own[name], update = phase.train({**server.global_state, **lied}, own[name], told, rng)
                total = phase.reducer.merge(total, phase.admit(server, update))
            server = close_round(ALGORITHM, server, total)
        opened = server.global_state[SUMMED]
    assert opened is None or np.abs(opened - expected_sum(DATA, NAMES)).min() > 1.0


def test_a_key_of_small_order_is_refused_before_it_can_stop_the_others(made: Round) -> None:
    for name in ("agreement", "channel"):
        update = {**made.updates[KEYS][LIAR], name: np.zeros((1, 32), dtype=np.uint8)}
        with pytest.raises(UpdateError, match=rf"{name}: 0+: expected a public key of X25519, got one of small order"):
            ALGORITHM.phases[KEYS].admit(made.servers[KEYS], update)


@pytest.mark.parametrize("change", [lambda vector: vector[1:], lambda vector: np.append(vector, vector[:1])])
def test_an_input_of_another_length_is_refused_and_its_sender_drops_out(made: Round, change: Any) -> None:
    update = made.updates[INPUT][LIAR]
    with pytest.raises(UpdateError, match=rf"masked: expected shape \({SIZE},\), got \(\d+"):
        ALGORITHM.phases[INPUT].admit(made.servers[INPUT], {**update, "masked": change(update["masked"])})
