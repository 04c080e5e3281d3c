"""The search for a width over several rounds: verdicts by hand, the way through the widths, what one voice can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated.protocol.algorithm import Server, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.support_vectors.width_search import (
    BAD,
    CONSISTENT,
    FACTOR,
    GATEWAYS,
    GOOD,
    NEAR,
    NEXT_WIDTH,
    SPAN,
    next_trial,
    verdict,
)
from tests.support.given_width import build

pytestmark = pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")
NAME = "support-vector-election"
NU = 0.2
PLAIN: dict[str, Any] = {"normalisation": "none", "anonymise": False, "nu": NU}
ROWS = 120


def fleet(places: tuple[float, ...] = (0.0, 1.0, 4.0)) -> dict[str, Arrays]:
    return {
        f"gateway{at}": {FEATURES: np.random.default_rng(at).normal(place, 1.0, (ROWS, 3))}
        for at, place in enumerate(places)
    }


def model_at(width: float, data: dict[str, Arrays]) -> Arrays:
    """Return the cloud's sphere on the support vectors of the first three quarters of each gateway."""
    vectors = [svdd.fit(each[FEATURES][: ROWS * 3 // 4], nu=NU, gamma=width)["vectors"] for each in data.values()]
    rows = np.concatenate(vectors)
    return svdd.fit(rows[np.lexsort(rows.T[::-1])], nu=NU, gamma=width)


def is_consistent(width: float, data: dict[str, Arrays]) -> bool:
    """Return the verdict, counted by hand."""
    model, voices = model_at(width, data), 0
    for each in data.values():
        late: Floats = each[FEATURES][ROWS * 3 // 4 :]
        outside = sum(float(svdd.SVDD.score(model, row[None])[0]) > 0.0 for row in late)
        voices += outside <= NU * len(late) + 2.0 * (NU * (1.0 - NU) * len(late)) ** 0.5
    return voices > len(data) / 2


def test_the_model_that_stays_is_of_the_narrowest_width_that_was_consistent() -> None:
    data = fleet()
    server = run(build(NAME, 3, {**PLAIN, "rounds": 14}), data).server
    good, bad = float(server.server_state[GOOD]), float(server.server_state[BAD])
    assert good < bad <= NEAR * good
    assert is_consistent(good, data) and not is_consistent(bad, data)
    assert good != pytest.approx(1.0 / 3.0)
    probes = np.random.default_rng(9).normal(1.0, 4.0, (200, 3))
    expected = svdd.SVDD.score(model_at(good, data), probes)
    np.testing.assert_allclose(svdd.SVDD.score(server.global_state, probes), expected, atol=1e-4)


def test_one_round_is_the_election_of_the_paper_and_no_search() -> None:
    algorithm = build(NAME, 3, {**PLAIN, "rounds": 1})
    assert len(algorithm.phases) == 1 and NEXT_WIDTH not in run(algorithm, fleet()).server.global_state
    plain, one = (run(build(NAME, 3, chosen), fleet()).server for chosen in (PLAIN, {**PLAIN, "rounds": 1}))
    assert encode(plain.global_state) == encode(one.global_state)


def followed(first: float, is_good: Callable[[float], bool], rounds: int) -> tuple[float, float]:
    """Return the narrowest consistent and the widest inconsistent width after so many rounds."""
    width, good, bad = first, 0.0, np.inf
    for _ in range(rounds):
        if is_good(width):
            good, bad = width, bad if bad > width else np.inf
        else:
            good, bad = good if good < width else 0.0, width
        width = next_trial(first, good, bad)
    return good, bad


@given(first=st.floats(1e-6, 1e6), octaves=st.floats(-19.0, 19.0))
def test_the_way_through_the_widths_closes_in_on_the_border(first: float, octaves: float) -> None:
    border = first * 2.0**octaves
    good, bad = followed(first, lambda width: width <= border, 10 + 5)
    assert good <= border < bad <= NEAR * good


@pytest.mark.parametrize(("answer", "end"), [(True, SPAN), (False, 1.0 / SPAN)])
def test_no_voices_carry_a_width_without_end(answer: bool, end: float) -> None:
    good, bad = followed(0.5, lambda _: answer, 100)
    assert next_trial(0.5, good, bad) == 0.5 * end


def judged(voices: list[float]) -> Server:
    """Return the server after a verdict of such voices over the first model."""
    algorithm, data = build(NAME, 3, {**PLAIN, "rounds": 5}), fleet()
    server = algorithm.start(generator(0, 0, "cloud"))
    for phase in algorithm.phases:
        total: Arrays = {}
        for who, each in enumerate(data.values()):
            _, update = phase.train(server.global_state, {}, each, generator(0, 0, str(who)))
            if CONSISTENT in update:
                update = {**update, CONSISTENT: np.array(voices[who])}
            total = phase.reducer.merge(total, phase.admit(server, update))
        server = close_round(algorithm, server, total)
    return server


def test_the_majority_decides_and_one_voice_alone_does_not() -> None:
    width = 1.0 / 3.0
    for voices, following in (([1, 1, 0], width * FACTOR), ([1, 0, 0], width / FACTOR), ([0, 1, 1], width * FACTOR)):
        assert float(judged([float(voice) for voice in voices]).global_state[NEXT_WIDTH]) == following


def test_a_verdict_that_never_came_leaves_the_model_that_stays() -> None:
    algorithm, server = build(NAME, 3, {**PLAIN, "rounds": 5}), judged([1.0, 1.0, 1.0])
    stays = {name: array for name, array in server.global_state.items() if name != NEXT_WIDTH}
    election, total = algorithm.phases[0], Arrays()
    for who, each in enumerate(fleet().values()):
        _, update = election.train(server.global_state, {}, each, generator(0, 1, str(who)))
        total = election.reducer.merge(total, election.admit(server, update))
    waiting = close_round(algorithm, server, total)
    assert waiting.phase == 1 and float(waiting.global_state["gamma"]) == FACTOR / 3.0
    after = close_round(algorithm, waiting, {})
    assert after.phase == 0 and encode({**after.global_state, NEXT_WIDTH: np.zeros(())}) == encode(
        {**stays, NEXT_WIDTH: np.zeros(())}
    )


@pytest.mark.parametrize(("name", "value"), [(CONSISTENT, 0.5), (CONSISTENT, 2.0), (GATEWAYS, 2.0), (GATEWAYS, 0.0)])
def test_a_gateway_has_one_voice(name: str, value: float) -> None:
    phase, voice = verdict(NU, "none"), {CONSISTENT: np.ones(()), GATEWAYS: np.ones(())}
    server = Server(global_state={}, server_state={})
    phase.admit(server, voice)
    with pytest.raises(UpdateError, match=rf"{name}: expected .* got {value:g}"):
        phase.admit(server, {**voice, name: np.array(value)})
