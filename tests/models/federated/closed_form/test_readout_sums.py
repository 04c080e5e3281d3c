"""The judge of sums: what no rows make is refused, and nobody takes back what was never counted."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.arrays import Arrays, generator
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn.reservoir import identity
from fedgate.models.federated.closed_form.incfed import CONDITION, UNDETERMINED, RankWarning, incfed, lacking
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Server, close_round
from fedgate.models.federated.protocol.schema import UpdateError
from tests.models.federated.closed_form.test_incfed import (
    FEATURE_COUNT,
    NETWORK,
    PLAIN,
    RNG,
    Fleet,
    close,
    pooled,
    series,
    weighing,
)


def hostile(server: Server, update: Arrays) -> dict[str, tuple[Arrays, str]]:
    """Return updates that no rows make, and the words that say so."""
    size = server.global_state["readout"].shape[1]
    gram = symmetric(update["gram"], size)
    upper = np.triu_indices(size)
    twisted, loud, moved = gram.copy(), gram.copy(), gram.copy()
    twisted[0, 1] = twisted[1, 0] = 1.01 * np.sqrt(gram[0, 0] * gram[1, 1])
    loud[0, 0] = 57.0
    moved[-1, -1] = 55.0
    return {
        "negative eigenvalue": ({**update, "gram": twisted[upper]}, "gram: expected sums of rows, so no negative"),
        "a state above one": ({**update, "gram": loud[upper]}, "gram: expected sizes up to 56"),
        "other count": ({**update, "gram": moved[upper]}, "gram: expected sizes up to 0"),
        "loud target": ({**update, "squares": np.full(3, 57.0 * 64.0)}, "squares: expected sizes up to 3584"),
        "impossible product": ({**update, "cross": update["cross"] + 500.0}, "cross: expected sizes up to"),
        "many": ({**update, "samples": np.array(MAX_SAMPLES + 1.0)}, "samples: expected up to 20000, got 20001"),
        "none": ({**update, "samples": np.array(-1.0)}, "samples: expected a total of at least 0"),
        "taken back": ({name: -array for name, array in update.items() if name != "reservoir"}, "expected array"),
    }


def _taken_back(update: Arrays) -> Arrays:
    plain = {name: -array for name, array in update.items() if name != "reservoir"}
    return {**plain, "turned": update["turned"]}


def test_what_no_rows_make_is_refused() -> None:
    algorithm = incfed(FEATURE_COUNT, **PLAIN)
    server = algorithm.start(generator(1, 0, "cloud"))
    phase = algorithm.phases[0]
    _, update = phase.train(server.global_state, {}, series(1, 60), RNG)
    assert phase.admit(server, update).keys() == {"gram", "cross", "squares", "samples", "turned"}
    for wrong, words in hostile(server, update).values():
        with pytest.raises(UpdateError, match=words):
            phase.admit(server, wrong)


def test_nobody_takes_back_more_than_was_counted() -> None:
    """From a total that is large enough the rows of another gateway cannot be taken, only what they have in common."""
    algorithm = incfed(FEATURE_COUNT, network=NETWORK, normalisation="none")
    server = algorithm.start(generator(1, 0, "cloud"))
    sent = [algorithm.phases[0].train(server.global_state, {}, series(who, 60), RNG)[1] for who in range(3)]
    total = Arrays()
    for update in sent[:2]:
        total = algorithm.phases[0].reducer.merge(total, algorithm.phases[0].admit(server, update))
    server = close_round(algorithm, server, total)
    own, stranger = (_taken_back(sent[who]) for who in (0, 2))
    algorithm.phases[0].admit(server, {**own, "reservoir": sent[0]["reservoir"]})
    for changes in ({}, {"cross": own["cross"], "squares": own["squares"]}):
        with pytest.raises(UpdateError, match=r"negative eigenvalue|expected sizes"):
            algorithm.phases[0].admit(server, {**stranger, **changes, "reservoir": sent[0]["reservoir"]})
    twice = {name: 1.01 * array for name, array in own.items()}
    twice["gram"] = own["gram"] * 1.9
    with pytest.raises(UpdateError):
        algorithm.phases[0].admit(server, {**twice, "reservoir": sent[0]["reservoir"]})


def test_who_says_that_nothing_changed_cannot_change_anything() -> None:
    """With the cross products of all others turned round the model would be upside down."""
    algorithm = incfed(FEATURE_COUNT, network=NETWORK, normalisation="none")
    phase, server = algorithm.phases[0], algorithm.start(generator(1, 0, "cloud"))
    total = Arrays()
    for who in range(3):
        total = phase.reducer.merge(
            total, phase.admit(server, phase.train(server.global_state, {}, series(who, 60), RNG)[1])
        )
    server = close_round(algorithm, server, total)
    nothing = {name: np.zeros_like(array) for name, array in total.items()} | {
        "reservoir": identity(server.global_state)
    }
    phase.admit(server, nothing)
    for rows in (0.0, 1e-3, 1.0):
        claimed = {"samples": np.array(rows), "turned": np.array(rows), "cross": -2.0 * server.server_state["cross"]}
        with pytest.raises(UpdateError, match=r"expected sizes|constant|negative"):
            phase.admit(server, {**nothing, **claimed})


def test_a_sum_that_two_have_emptied_makes_no_model() -> None:
    algorithm = incfed(FEATURE_COUNT, network=NETWORK, normalisation="none")
    phase, server = algorithm.phases[0], algorithm.start(generator(1, 0, "cloud"))
    update = phase.train(server.global_state, {}, series(1, 60), RNG)[1]
    server = close_round(algorithm, server, phase.admit(server, update))
    assert lacking(server) == ""
    back = phase.admit(server, {**_taken_back(update), "reservoir": update["reservoir"]})
    emptied = close_round(algorithm, server, back)
    assert lacking(emptied) == "nobody is left in its sums" and not emptied.global_state["readout"].any()
    twice = close_round(algorithm, server, phase.reducer.merge(back, back))
    assert "determine no model" in lacking(twice) and np.array_equal(
        twice.global_state["readout"], server.global_state["readout"]
    )


def test_an_update_of_another_reservoir_is_refused_with_both_seeds() -> None:
    algorithm = incfed(FEATURE_COUNT, **PLAIN)
    mine, other = (algorithm.start(generator(seed, 0, "cloud")) for seed in (1, 2))
    _, update = algorithm.phases[0].train(other.global_state, {}, series(1, 60), RNG)
    seeds = [server.global_state["reservoir.seed"].tobytes().hex() for server in (mine, other)]
    with pytest.raises(UpdateError, match=f"expected {seeds[0]}.*got {seeds[1]}"):
        algorithm.phases[0].admit(mine, update)


def test_sums_that_determine_no_readout_are_kept_and_leave_the_one_before() -> None:
    fleet = Fleet(incfed(FEATURE_COUNT, **PLAIN, ridge=0.0))
    with pytest.warns(RankWarning, match=r"given for 8 rows of 13 states .*: expected a ridge of 1e-06"):
        fleet.exchange({"a": (weighing(series(1, 12), 1.0), True)})
    assert (
        float(fleet.server.global_state[CONDITION]) == UNDETERMINED and not fleet.server.global_state["readout"].any()
    )
    fleet.exchange({"b": (weighing(series(2, 80), 1.0), True)})
    assert float(fleet.server.global_state[CONDITION]) < 1e8
    assert close(
        fleet.server.global_state["readout"],
        pooled(fleet.server.global_state, [series(1, 12), series(2, 80)], NETWORK, 0.0),
        1e-8,
    )
