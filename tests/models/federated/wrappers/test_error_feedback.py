"""Compressed updates: nothing is lost over rounds, hostile messages cost nothing, what would do harm is refused."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import COUNTED, FEATURES, Arrays, Floats, generator
from fedgate.models.detectors.base import linear
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, RoundFailedError, Server
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import Field, Role, UpdateError
from fedgate.models.federated.wrappers.error_feedback import Compression, with_error_feedback
from fedgate.models.packing import entries_sent, packed
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.support.given_width import build

ROLES: tuple[Role, ...] = ("delta", "full")  # of which the other has no feedback
LOGISTIC = {"loss": "logistic", "components": 0}


@pytest.mark.parametrize("share", [0.01, 1.0])
def test_what_really_came_is_not_expanded_beyond_what_the_cloud_holds(share: float) -> None:
    """Bitmaps of zeros cost their sender a bit an entry, and would cost the cloud 64."""
    size, arrays = 2**22, ("intercept", "weights")
    algorithm = build("fedavg", FEATURE_COUNT, {**LOGISTIC, "compression": {"number": "int8", "share": share}})
    server, count = algorithm.start(generator(0, 0, "cloud")), entries_sent(size, share)
    bitmap = np.packbits(np.arange(size) < count)
    message: Arrays = {name: np.ones(count, dtype=np.int8) for name in arrays}
    if share < 1.0:
        message |= {"mask.weights": bitmap, "shape.weights": np.array([size])}
    tracemalloc.start()
    with pytest.raises(UpdateError, match=rf"expected up to \d+ entries in all, got {size} in 1 arrays"):
        algorithm.phases[0].admit(server, {**message, "scales": np.ones(1), "samples": np.array(9.0)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size, "eight bytes an entry would be 128 MiB"


HONEST: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("fedavg", "fedper", "fedprox", "robust-svm-admm", "robust-svm-subgradient")),
    ("conditional-fedavg", {}),
]


@pytest.mark.parametrize(("name", "chosen"), HONEST, ids=str)
def test_an_honest_update_is_never_larger_than_what_the_cloud_holds(name: str, chosen: dict[str, Any]) -> None:
    algorithm = build(name, FEATURE_COUNT, {**chosen, "compression": {"number": "int8"}})
    data = {who: each.data for who, each in fleet(3, labelled=algorithm.labels).items()}
    refused: list[Exception] = []
    run(algorithm, data, rounds=2, on_refusal=lambda _, error: refused.append(error))
    assert not refused


class Taught:
    """An algorithm whose updates are given: the model is the sum of all that arrived."""

    def __init__(self, updates: list[Floats], role: Role = "delta") -> None:
        self._updates = updates
        schema = {"w": Field("w", role), "samples": Field((), "weight")}
        self.algorithm = Algorithm("linear", self._start, (Phase(self._learn, SUM, self._advance, schema),))

    def _start(self, rng: np.random.Generator) -> Server:
        return Server({"w": np.zeros_like(self._updates[0]), "step": np.array(0)}, {})

    def _learn(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        return {**own, "seen": np.array(1.0)}, {"w": self._updates[int(data["round"])], "samples": np.array(1.0)}

    def _advance(self, server: Server, total: Arrays) -> Server:
        moved = {"w": server.global_state["w"] + total["w"], "step": np.asarray(server.global_state["step"] + 1)}
        return server._replace(global_state=moved)


def residuals(own: Arrays, part: str) -> Floats:
    return np.asarray(own.get(f"compression.{part}.0.w", 0.0))


OPTIONS = [
    {"number": "float32"},
    {"number": "float16"},
    {"number": "int8"},
    {"number": "float64", "share": 0.1},
    {"number": "int8", "share": 0.25},
]


@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
def test_what_arrived_and_what_is_left_are_all_that_was_sent(chosen: dict[str, Any]) -> None:
    """Also where updates are lost, refused, or made again because their round came to nothing."""
    rng = generator(0, 0, "updates")
    updates = [rng.normal(size=(6, 7)) * 10.0 ** rng.integers(-3, 3) for _ in range(60)]
    algorithm = with_error_feedback(Taught(updates).algorithm, Compression.model_validate(chosen))
    phase, server, own, counted, last = algorithm.phases[0], algorithm.start(rng), Arrays(), np.zeros((6, 7)), True
    for index, update in enumerate(updates):
        fate = ("counted", "lost", "nobody counted")[int(rng.integers(3))]
        data = {FEATURES: np.zeros((1, 1)), "round": np.array(index), COUNTED: np.array(last)}
        own, message = phase.train(server.global_state, own, data, rng)
        last = fate == "counted"
        if fate == "counted":
            counted += update
            server = phase.advance(server, phase.admit(server, message))
            apart = np.abs(server.global_state["w"] + residuals(own, "sent") - counted).max()
            assert apart < 1e-6 * (1 + np.abs(counted).max())  # residuals rest in float32
        elif fate == "lost":  # but others were counted
            server = server._replace(
                global_state={**server.global_state, "step": np.asarray(server.global_state["step"] + 1)}
            )
    assert residuals(own, "left").shape == (6, 7)


def test_what_a_round_took_that_failed_is_said_again() -> None:
    updates = [np.array([1.0, 0.3, 0.3, 0.3])]
    taught, fails = Taught(updates).algorithm, iter([False, True, True, False])

    def advance(server: Server, total: Arrays) -> Server:
        if next(fails):
            raise RoundFailedError("as it may")
        return taught.phases[0].advance(server, total)

    failing = taught._replace(phases=(taught.phases[0]._replace(advance=advance),))
    algorithm = with_error_feedback(failing, Compression(number="int8", share=0.25))
    data: dict[str, Arrays] = {"north": {FEATURES: np.zeros((1, 1)), "round": np.array(0)}}
    outcome = run(algorithm, data, rounds=2)
    sent = outcome.server.global_state["w"] + residuals(outcome.local_states["north"], "sent")
    np.testing.assert_allclose(sent, 2.0 * updates[0], rtol=1e-6)


def test_without_feedback_it_would_not_hold() -> None:
    updates = [np.full(4, 0.3) + np.array([1.0, 0.0, 0.0, 0.0]) for _ in range(40)]
    sums = {}
    for role in ROLES:
        algorithm = with_error_feedback(Taught(updates, role).algorithm, Compression(number="int8"))
        phase, server, own = algorithm.phases[0], algorithm.start(generator(0, 0, "a")), Arrays()
        for index in range(40):
            data = {FEATURES: np.zeros((1, 1)), "round": np.array(index)}
            own, message = phase.train(server.global_state, own, data, generator(0, 0, "a"))
            server = phase.advance(server, phase.admit(server, message))
        sums[role] = float(np.abs(server.global_state["w"] - np.sum(updates, axis=0)).max())
    assert sums["delta"] < 0.006 and sums["full"] > 0.02


@pytest.mark.soak
def test_feedback_brings_a_training_nearer_to_the_exact_one() -> None:
    data = {name: each.data for name, each in fleet(3, labelled=True, rows=200).items()}
    chosen = {"loss": "logistic", "rounds": 10}
    exact = run(build("fedavg", FEATURE_COUNT, chosen), data).server.global_state["weights"]
    algorithm = build("fedavg", FEATURE_COUNT, {**chosen, "compression": {"share": 0.25}})

    def forgetful(phase: Phase) -> Phase:
        return phase._replace(learn=lambda shared, own, data, rng: phase.train(shared, _own(own), data, rng))

    def _own(own: Arrays) -> Arrays:
        return {name: array for name, array in own.items() if not name.startswith("compression.")}

    forgetting = algorithm._replace(phases=tuple(map(forgetful, algorithm.phases)))
    apart = [np.linalg.norm(run(each, data).server.global_state["weights"] - exact) for each in (algorithm, forgetting)]
    assert apart[0] < 0.5 * apart[1]


def log_loss(params: Arrays, data: dict[str, Arrays], own: dict[str, Arrays]) -> float:
    losses = []
    for name, rows in data.items():
        z = linear.score({**params, **own[name]}, rows[FEATURES])
        losses.append(np.logaddexp(0.0, np.where(rows["y"] == 1, -z, z)).mean())
    return float(np.mean(losses))


def counting_into(sent: list[int]) -> Callable[[str, Arrays], None]:
    return lambda _, update: sent.append(len(encode(update)))


@pytest.mark.soak
def test_int8_takes_a_quarter_of_the_bytes_at_no_loss() -> None:
    data = {name: each.data for name, each in fleet(5, labelled=True, rows=100).items()}
    chosen = {"loss": "logistic", "components": 4096, "rounds": 5}
    size, loss = {}, {}
    for number in ("float32", "int8"):
        sent: list[int] = []
        algorithm = build("fedavg", FEATURE_COUNT, {**chosen, "compression": {"number": number}})
        outcome = run(algorithm, data, on_update=counting_into(sent))
        size[number], loss[number] = sum(sent), log_loss(outcome.server.global_state, data, outcome.local_states)
    assert size["int8"] <= 0.27 * size["float32"]
    assert abs(loss["int8"] - loss["float32"]) <= 0.005 and loss["float32"] < 0.3


def test_an_exchange_that_bears_nothing_travels_as_it_is() -> None:
    data = {name: each.data for name, each in fleet(1, labelled=True).items()}
    kinds: list[dict[str, str]] = []
    algorithm = build(
        "fedavg", FEATURE_COUNT, {"whiten": 2, "loss": "logistic", "rounds": 2, "compression": {"number": "int8"}}
    )
    run(algorithm, data, on_update=lambda _, update: kinds.append({name: str(a.dtype) for name, a in update.items()}))
    assert "compression" in algorithm.traits - build("fedavg", FEATURE_COUNT, {}).traits
    assert set(kinds[0].values()) == {"float64"}
    assert kinds[-1] == {"weights": "int8", "intercept": "float64", "samples": "float64", "scales": "float64"}


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        ("incfed", {"compression": {}}, "solved from rounded or thinned sums"),
        ("federated-subspace", {"compression": {}}, "sends sums or rows, expected steps"),
        ("ensemble-svdd", {"compression": {}}, "sends sums or rows, expected steps"),
        ("fedavg", {"compression": {"share": 0.5}}, "updates say everything anew, expected 1"),
        ("fedavg", {"compression": {"number": "float64"}}, "saves nothing"),
        ("fedavg", {**LOGISTIC, "compression": {"number": "float64", "share": 0.99}}, "saves nothing"),
        ("recurrent-fedavg", {"compression": {}}, "updates are float32 as they are, so that it saves nothing"),
        (
            "recurrent-fedavg",
            {"compression": {"number": "float64", "share": 0.5}},
            "it saves nothing; expected float16",
        ),
        ("fedavg", {"compression": {"number": "int4"}}, r"compression.number: .*got 'int4'"),
        ("fedavg", {"compression": {"share": 0.0}}, r"compression.share: .*greater than 0"),
        (
            "fedavg",
            {
                "loss": "logistic",
                "compression": {},
                "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 9.0, "where": "cloud"},
            },
            "privacy.where 'cloud', expected 'gateway'",
        ),
    ],
)
def test_what_would_do_harm_is_refused(name: str, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(name, FEATURE_COUNT, chosen)


def test_once_is_enough_and_names_are_kept_free() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"compression": {}})
    with pytest.raises(ValueError, match="expected one without"):
        with_error_feedback(algorithm, Compression())
    with pytest.raises(ValueError, match=r"mask\.a: expected a name other than"):
        packed({"mask.a": np.zeros(2)}, ["mask.a"], "int8", 1.0)
    assert with_error_feedback(Taught([np.zeros(2)]).algorithm, Compression()).phases[0].reducer.additive
    with pytest.raises(ValueError, match="solved from rounded or thinned sums"):
        with_error_feedback(Taught([np.zeros(2)], "sum").algorithm, Compression())


def test_the_cloud_says_what_is_wrong_with_a_message() -> None:
    algorithm = with_error_feedback(Taught([np.ones(9)]).algorithm, Compression(number="int8"))
    server = algorithm.start(generator(0, 0, "a"))
    data = {FEATURES: np.zeros((1, 1)), "round": np.array(0)}
    _, message = algorithm.phases[0].train(server.global_state, {}, data, generator(0, 0, "a"))
    with pytest.raises(UpdateError, match=r"expected beside values of int8 arrays \['scales'\], got \[\]"):
        algorithm.phases[0].admit(server, {name: array for name, array in message.items() if name != "scales"})
    with pytest.raises(UpdateError, match="expected finite values"):
        algorithm.phases[0].admit(server, {**message, "scales": np.array([math.inf])})
