"""What the cloud can make of everything it was sent in a masked round: the sum, and of one gateway nothing.

The attacks are run, not argued: whatever reached the cloud is collected, and one gateway's input looked for in all that
can be computed from it. That the same attacks succeed with one secret more shows that they would find it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, Array, Arrays, exchange_secret, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.secure_aggregation.client import (
    COMMITMENT,
    MASKED,
    SHARES,
    STEPS,
    _share_texts,
    mask_key,
    self_mask_key,
)
from fedgate.models.federated.secure_aggregation.keys import (
    Keys,
    add_mask,
    derived,
    loaded,
    public_key,
    to_bytes,
    to_number,
)
from fedgate.models.federated.secure_aggregation.options import AGREEMENT, PUBLIC_KEYS, Masking, Roster, digest_of
from fedgate.models.federated.secure_aggregation.ring import Ring, encoded
from fedgate.models.federated.secure_aggregation.shamir import interpolated
from fedgate.models.federated.secure_aggregation.wrapper import with_secure_aggregation
from fedgate.models.testing.fleet import fleet
from tests.models.federated.secure_aggregation.test_masked import ADDITIVE, LEAVE, plain
from tests.support.masked_rounds import (
    INPUT,
    KEYS,
    QUANTUM,
    SUMMED,
    UNMASK,
    Round,
    expected_sum,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)
from tests.support.soak import some

SIZE = 8_192
NAMES = names_of(6)
LATE, LATER = "gateway-002", "gateway-004"  # their inputs come when they were declared to have dropped out
DATA = rows_of(NAMES, SIZE)
MOST = 1e6
ROUNDS, SEEDS = 6, {"incfed": 8, "partial-incfed": 2}  # a running total is where others leave one alone
CRITICAL = 400.0  # of χ² with 255 degrees of freedom: a uniform one is above it once in 10^8


class Cloud(NamedTuple):
    """What an honest but curious cloud has after a round: the roster, inputs by place, and secrets put together."""

    roster: Roster
    inputs: dict[int, Ring]
    seeds: dict[int, bytes]
    privates: dict[int, bytes]
    handed: bytes


def round_with_late_inputs() -> Round:
    late = {LATE, LATER}
    return took_part(masked_adding(SIZE), DATA, loses=lambda step, name: step == INPUT and name in late)


@pytest.fixture(scope="module")
def made() -> Round:
    return round_with_late_inputs()


@pytest.fixture(scope="module")
def cloud(made: Round) -> Cloud:
    return known_to_the_cloud(made)


def known_to_the_cloud(made: Round) -> Cloud:
    rows = sorted(made.updates[KEYS].values(), key=lambda update: update[AGREEMENT].tobytes())
    keys = {name: np.concatenate([row[name] for row in rows]) for name in (*PUBLIC_KEYS, COMMITMENT)}
    roster = Roster.of(keys, Masking(fewest=3))
    shares = {place: dict[int, int]() for place in range(len(rows))}
    for name, update in made.updates[UNMASK].items():
        for slot, place in enumerate(map(int, roster.holders[made.places[name]])):
            shares[place][made.places[name] + 1] = to_number(update[SHARES][0, slot].tobytes())
    seeds, privates = dict[int, bytes](), dict[int, bytes]()
    for place, points in shares.items():
        for chosen in itertools.combinations(sorted(points), roster.threshold):
            secret = to_bytes(interpolated({point: points[point] for point in chosen}))
            if derived(secret, "commitment") == keys[COMMITMENT][place].tobytes():
                seeds[place] = secret
            if public_key(secret) == keys[AGREEMENT][place].tobytes():
                privates[place] = secret
    inputs = {made.places[name]: update[MASKED] for name, update in made.updates[INPUT].items()}
    return Cloud(roster, inputs, seeds, privates, digest_of(made.servers[INPUT].global_state))


def input_of(name: str) -> Ring:
    return encoded({SUMMED: DATA[name][FEATURES].sum(axis=0)}, QUANTUM, MOST)


def unmasked(cloud: Cloud, place: int, extra: Keys | None = None) -> Ring:
    """Return an input without every mask of which the cloud knows the key, with the `extra` keys of its owner too."""
    vector = cloud.inputs[place].copy()
    seed = cloud.seeds.get(place) if extra is None else extra.seed
    if seed is not None:
        add_mask(vector, self_mask_key(seed, cloud.roster, cloud.handed), taken_off=True)
    own = cloud.privates.get(place) if extra is None else extra.agreement
    for other in cloud.inputs:
        if other != place and own is not None:
            add_mask(vector, mask_key(loaded(own), cloud.roster, place, other, cloud.handed), taken_off=place < other)
        elif other != place and other in cloud.privates:
            key = mask_key(loaded(cloud.privates[other]), cloud.roster, other, place, cloud.handed)
            add_mask(vector, key, taken_off=place < other)
    return vector


def chi_square(vector: Ring) -> float:
    """Return χ² of the bytes of the lower and upper halves of a vector against all bytes being equally likely."""
    found = vector.astype("<u8").view(np.uint8).reshape(-1, 8)[:, [0, 7]]
    counts = np.stack([np.bincount(column, minlength=256) for column in found.T])
    expected = len(vector) / 256.0
    return float((np.square(counts - expected) / expected).sum(axis=1).max())


def betrays(vector: Ring, name: str) -> bool:
    """Tell whether a vector says more of a gateway's input than any other number would, in any of its places."""
    near = np.abs((vector - input_of(name)).view(np.int64)) < 2**44  # of a ring of 2^64: one in half a million
    return bool(near.mean() > 0.01) or chi_square(vector) > CRITICAL


def combinations(vectors: list[Ring]) -> Iterator[Ring]:
    """Yield every sum of vectors in which each is added, taken off or left out."""
    for signs in itertools.product((0, 1, -1), repeat=len(vectors)):
        if any(signs):
            total: Ring = np.zeros(SIZE, dtype=np.uint64)
            for sign, vector in zip(signs, vectors, strict=True):
                total = total + vector if sign > 0 else total - vector if sign < 0 else total
            yield total


def test_the_sum_is_right_and_the_late_ones_are_not_in_it(made: Round) -> None:
    in_time = [name for name in NAMES if name not in (LATE, LATER)]
    np.testing.assert_allclose(made.server.global_state[SUMMED], expected_sum(DATA, in_time), atol=len(NAMES) * QUANTUM)


def test_of_nobody_both_secrets_are_known(made: Round, cloud: Cloud) -> None:
    late = {made.places[LATE], made.places[LATER]}
    assert cloud.seeds.keys() == set(range(len(NAMES))) - late
    assert cloud.privates.keys() == late


def test_what_arrives_are_bytes_and_ring_values_that_look_like_any_others(made: Round, cloud: Cloud) -> None:
    for updates in made.updates:
        for update in updates.values():
            assert {array.dtype for array in update.values()} <= {np.dtype(np.uint8), np.dtype(np.uint64)}
            assert not update.get("part", np.zeros(())).any()
    for vector in cloud.inputs.values():
        assert chi_square(vector) < CRITICAL
    assert all(chi_square(input_of(name)) > 100.0 * CRITICAL for name in NAMES)  # an input itself does not


def test_no_input_comes_out_of_all_that_the_cloud_can_take_off(made: Round, cloud: Cloud) -> None:
    for name in NAMES:
        assert not betrays(unmasked(cloud, made.places[name]), name)


def test_no_combination_of_inputs_betrays_one(made: Round, cloud: Cloud) -> None:
    """Each added, taken off or left out, as they came and with all known masks off: only the sum of all in time is not
    noise, and it is none of them.
    """
    raw = [cloud.inputs[place] for place in sorted(cloud.inputs)]
    bare = [unmasked(cloud, place) for place in sorted(cloud.inputs)]
    in_time = [place for place in sorted(cloud.inputs) if place in cloud.seeds]
    whole = np.asarray(np.sum([bare[place] for place in in_time], axis=0, dtype=np.uint64))
    assert chi_square(whole) > CRITICAL
    for vectors in (raw, bare):
        for total in combinations(vectors):
            is_the_sum = vectors is bare and any(np.array_equal(total, each) for each in (whole, np.uint64(0) - whole))
            if not is_the_sum:
                assert chi_square(total) < CRITICAL


def test_the_cloud_cannot_guess_a_secret_from_what_everybody_knows(cloud: Cloud, made: Round) -> None:
    known = [b"", b"0", bytes(32), b"run", cloud.roster.digest, *(row.tobytes() for row in cloud.roster.agreement)]
    known += [token for updates in made.updates for update in updates.values() for token in tokens_of(update)]
    publics = {row.tobytes() for row in cloud.roster.agreement}
    for name, secret in itertools.product(NAMES, known):
        for guess in (secret, exchange_secret(secret, "run", 0, name).tobytes()):
            assert public_key(Keys.of(guess).agreement) not in publics


def tokens_of(update: Arrays) -> list[bytes]:
    return [array.tobytes() for name, array in update.items() if name in ("token", COMMITMENT)]


def test_with_the_secret_of_one_drop_out_the_same_attack_finds_its_input(made: Round, cloud: Cloud) -> None:
    for name in (LATE, LATER, NAMES[0]):
        keys = Keys.of(secret_of(name, 0).tobytes())
        found = unmasked(cloud, made.places[name], keys)
        np.testing.assert_array_equal(found, input_of(name))
        assert betrays(found, name)


def test_with_the_seed_alone_or_the_private_key_alone_it_does_not(made: Round, cloud: Cloud) -> None:
    """The cloud has the private key of a late gateway and the seeds of the others; the other half is missing."""
    keys = Keys.of(secret_of(NAMES[0], 0).tobytes())
    half = keys._replace(seed=bytes(32))
    assert not betrays(unmasked(cloud, made.places[NAMES[0]], half), NAMES[0])


def test_fewer_colluding_gateways_than_the_threshold_cannot_open_a_late_input(made: Round, cloud: Cloud) -> None:
    """A gateway that gives the cloud all it has adds one share of the seed, and four are needed."""
    assert cloud.roster.threshold == 4
    place, colluding = made.places[LATE], [made.places[name] for name in (NAMES[0], NAMES[1], NAMES[3])]
    texts = shares_of_seed(made, LATE, colluding)
    for chosen in itertools.permutations(texts.items(), 3):
        secret = to_bytes(interpolated(dict(chosen)))
        assert derived(secret, "commitment") != made.updates[KEYS][LATE][COMMITMENT].tobytes()
    enough = shares_of_seed(made, LATE, [made.places[name] for name in (NAMES[0], NAMES[1], NAMES[3], NAMES[5])])
    secret = to_bytes(interpolated(enough))
    assert derived(secret, "commitment") == made.updates[KEYS][LATE][COMMITMENT].tobytes()
    assert place not in cloud.seeds


def shares_of_seed(made: Round, name: str, holders: list[int]) -> dict[int, int]:
    """Return the shares of a gateway's seed, by point, as their holders can open them."""
    roster, keys = known_to_the_cloud(made).roster, Keys.of(secret_of(name, 0).tobytes())
    texts = _share_texts(keys, roster, made.places[name], holders)
    return {holder + 1: to_number(text[:32]) for holder, text in zip(holders, texts, strict=True)}


def test_two_rounds_share_no_key_and_no_mask() -> None:
    """The difference of one gateway's two inputs is noise, though its data is the same."""
    algorithm = masked_adding(SIZE)
    first = took_part(algorithm, DATA)
    second = took_part(algorithm, DATA, server=first.server, own=first.own)
    for name in NAMES:
        inputs: list[Array] = [made.updates[INPUT][name][MASKED] for made in (first, second)]
        assert chi_square(inputs[1] - inputs[0]) < CRITICAL
        for key in (*PUBLIC_KEYS, COMMITMENT, "token"):
            assert not np.array_equal(first.updates[KEYS][name][key], second.updates[KEYS][name][key])


def is_opened(made: Round) -> bool:
    """Tell whether the sum of a round was unmasked: else it is among those that were lost, if it came so far."""
    if len(made.servers) <= STEPS:
        return False
    digest, lost = made.servers[UNMASK].global_state["masking.round"], made.server.server_state.get("masking.lost")
    return lost is None or not (lost == digest).all(axis=1).any()


def fleet_of(algorithm: Algorithm, part: int) -> dict[str, Arrays]:
    return {name: each.data for name, each in fleet(part, labelled=algorithm.labels, alike=True).items()}


def is_before(ends: Mapping[str, int], step: int, name: str) -> bool:
    return step < ends[name]


def is_determined(rows: Array, owners: list[str], name: str) -> bool:
    """Tell whether sums (n, unknowns) determine anything of one gateway: a combination of them in which only its own
    unknowns are left.
    """
    others = rows[:, [owner != name for owner in owners]]
    return bool(np.linalg.matrix_rank(rows) > np.linalg.matrix_rank(others))


def test_two_sums_of_one_model_tell_what_they_differ_by() -> None:
    """What masks do not hold against (docs/reference/security.md): a restored store hands its model out again."""
    algorithm = masked_adding(SIZE)
    made = took_part(algorithm, DATA)
    again = made.servers[0]._replace(round_index=made.server.round_index + STEPS)
    without = took_part(
        algorithm, DATA, server=again, own=made.own, loses=lambda step, name: (step, name) == (INPUT, LATE)
    )
    told = made.server.global_state[SUMMED] - without.server.global_state[SUMMED]
    np.testing.assert_allclose(told, DATA[LATE][FEATURES][0], atol=len(NAMES) * QUANTUM)


def test_the_rank_tells_what_sums_determine() -> None:
    owners, leaves_alone = ["a", "b", "c"], np.array([[1.0, 1.0, 1.0], [0.0, -1.0, -1.0]])
    assert [is_determined(leaves_alone, owners, name) for name in owners] == [True, False, False]
    assert not is_determined(leaves_alone[:1], owners, "a")


FIRST = [(name, 0) for name in ADDITIVE]
MORE = [(name, seed) for name in ADDITIVE for seed in range(1, SEEDS.get(name, 1))]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "seed"), some([*FIRST, *MORE], len(FIRST)))
def test_from_all_sums_of_a_training_nothing_of_one_gateway_is_determined(name: str, seed: int) -> None:
    """Gateways join late, have news or none, drop out, leave and come back; what the cloud opened are equations in what
    each of them had at a time, and where a running total is kept an input is the difference of two of those.
    """
    algorithm, rng = with_secure_aggregation(plain(name), Masking(fewest=3, threshold=0.51)), generator(seed, 0, name)
    fleets = [fleet_of(algorithm, part) for part in range(ROUNDS)]
    names = [f"{one} {copy}" for one in fleets[0] for copy in (0, 1)]
    server: Server | None = None
    own: dict[str, Arrays] | None = None
    sums, unknowns = list[dict[int, float]](), dict[tuple[int, str, int], int]()
    held = dict[tuple[int, str], int]()  # which unknown is in the running total of an exchange, of whom
    part = dict.fromkeys(names, 0)
    news, leave = rng.choice([0.1, 0.5], ROUNDS), rng.choice([0.0, 0.1, 0.8], ROUNDS)
    for number in range(ROUNDS):
        part |= {one: number for one in names if rng.random() < news[number]}
        now = {one: fleets[part[one]][one.split()[0]] for one in names}
        left = {one for one in names if rng.random() < leave[number]}
        data = {one: LEAVE if one in left else rows for one, rows in now.items()}
        away = {one: int(rng.integers(0, 5 * STEPS)) for one in names}
        made = took_part(
            algorithm,
            data,
            server=server,
            own=own,
            comes=partial(is_before, away),
            goes_on=True,
        )
        server, own = made.server, made.own
        if not is_opened(made):
            continue
        places = {place: one for one, place in made.places.items()}
        equation = dict[int, float]()
        for one in (places[place] for place in made.servers[UNMASK].server_state["masking.present"].tolist()):
            key, index = (made.servers[0].phase, one), number
            if algorithm.remembers:
                index = part[one]  # the same rows give the same sums
                if key in held:
                    equation[held.pop(key)] = -1.0
            if one not in left:
                at = held[key] = unknowns.setdefault((*key, index), len(unknowns))
                equation[at] = equation.get(at, 0.0) + 1.0
        sums.append(equation)
    rows = np.array([[equation.get(at, 0.0) for at in range(len(unknowns))] for equation in sums])
    assert len(sums) > 1
    assert not [one for one in names if is_determined(rows, [of[1] for of in unknowns], one)]
