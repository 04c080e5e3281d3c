"""The thesis's discriminator of anomalous clients (federated-esn paper, Chapter 4): a network that looks at updates.

    relu(64) -> dropout -> relu(32) -> dropout -> sigmoid        of W_t - W_{t+1}, what one gateway would take away

It is trained before, on trusted tables: a Real training on them as they are and a Fake one on the same with normal
noise on every feature. Every update of the first is told from every update of the second, by cross-entropy with Adam at
1e-3 in batches of 64 for 5 epochs (Section 6.1). The thesis gives neither sizes nor rates; 64, 32 and 0.2 are ours, and
so is that its input is divided by its root mean square, one number for all.

What an update looks like depends on all that the gateways share: reservoir, steps, batches, class weights. All of it is
kept with the network (`context.`), which refuses to judge anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from fedgate.models.adam import Adam
from fedgate.models.arrays import FEATURES, Array, Arrays, Booleans, Floats, joined, parted
from fedgate.models.federated.defences.single_update import change_of
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.schema import Schema, moving

SIZES = (64, 32)
DROPOUT = 0.2
LEARNING_RATE, BATCH, EPOCHS = 1e-3, 64, 5
HELD_OUT = 0.2
ROUNDS = 78  # of the Real and of the Fake training
COPIES = 2  # of each table, with noise of their own, each a gateway
CONTEXT = "context"
SCALE, ACCURACY = "scale", "accuracy"
MOVES = "moves"  # whether the updates are changes of what is shared


class ContextError(ValueError):
    """The network was made for updates of another training."""


def layers_of(network: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    """Return weights (inputs, outputs) and bias (outputs,) of each layer."""
    return [(network[f"layer{index}.weights"], network[f"layer{index}.bias"]) for index in range(len(SIZES) + 1)]


def judged_clean(network: Mapping[str, Array], changes: Array) -> Floats:
    """Return for each of the changes (n, D) the probability (n,) that its gateway trained on clean data."""
    values = np.asarray(changes / network[SCALE], dtype=np.float64)
    *hidden, (weights, bias) = layers_of(network)
    for inner, offset in hidden:
        values = np.maximum(values @ inner + offset, 0.0)
    return np.asarray(np.exp(-np.logaddexp(0.0, -(values @ weights + bias)[:, 0])))


def fit(changes: Array, clean: Booleans, rng: np.random.Generator, *, epochs: int = EPOCHS) -> Arrays:
    """Return the network trained on changes (n, D), and on whether each is of a gateway with clean data (n,).

    A fifth of them is held out; `accuracy` () is the share of those that is told right.
    """
    order = rng.permutation(len(changes))
    held = order[: round(HELD_OUT * len(order))]
    learned = order[len(held) :]
    scale = float(np.sqrt(np.mean(np.square(changes[learned])))) or 1.0
    params = _initial(changes.shape[1], rng)
    adams = {name: Adam(array.shape) for name, array in params.items()}
    for _ in range(epochs):
        shuffled = rng.permutation(learned)
        for start in range(0, len(shuffled), BATCH):
            rows = shuffled[start : start + BATCH]
            slopes = dict(_slopes(params, changes[rows] / scale, clean[rows], rng))
            params = {
                name: np.asarray(array - LEARNING_RATE * adams[name].direction(slopes[name]))
                for name, array in params.items()
            }
    network = {**params, SCALE: np.array(scale)}
    right = (judged_clean(network, changes[held]) > 0.5) == clean[held]
    return {**network, ACCURACY: np.array(float(right.mean()) if len(held) else np.nan)}


def _initial(inputs: int, rng: np.random.Generator) -> Arrays:
    """Return layers drawn as Glorot and Bengio 2010 do, Eq. 16."""
    found: Arrays = {}
    sizes = (inputs, *SIZES, 1)
    for index, (before, after) in enumerate(pairwise(sizes)):
        limit = np.sqrt(6.0 / (before + after))
        found[f"layer{index}.weights"] = rng.uniform(-limit, limit, (before, after))
        found[f"layer{index}.bias"] = np.zeros(after)
    return found


def _slopes(params: Arrays, batch: Array, clean: Array, rng: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    """Yield the gradient of the mean cross-entropy by name, each hidden value left out with the dropout's chance."""
    *hidden, (weights, bias) = layers_of(params)
    values, slopes = [batch], []
    for inner, offset in hidden:
        passes = (rng.random((len(batch), len(offset))) >= DROPOUT) / (1.0 - DROPOUT)
        reached = np.maximum(values[-1] @ inner + offset, 0.0)
        slopes.append(passes * (reached > 0.0))
        values.append(reached * passes)
    logits = (values[-1] @ weights + bias)[:, 0]
    error = (np.exp(-np.logaddexp(0.0, -logits)) - clean)[:, None] / len(batch)  # (b, 1)
    for index in range(len(SIZES), -1, -1):
        yield f"layer{index}.weights", values[index].T @ error
        yield f"layer{index}.bias", error.sum(axis=0)
        if index:
            error = (error @ params[f"layer{index}.weights"].T) * slopes[index - 1]


def train_discriminator(
    algorithm: Algorithm,
    trusted: Sequence[Arrays],
    rng: np.random.Generator,
    *,
    noise: float = 1.0,
    rounds: int = ROUNDS,
    epochs: int = EPOCHS,
) -> Arrays:
    """Return the network for the updates of an algorithm, with all that they depend on.

    :param trusted: tables of features, and of labels where the algorithm needs them, each of one gateway.
    :param rng: the generator that starts the training to be defended, `generator(seed, 0, "cloud")`: what the cloud
        draws from it, a reservoir among it, is then the same.
    :param noise: of the Fake training, in deviations of each feature.

    Raises `ValueError` for an algorithm of more than one exchange, or without a table.
    """
    if len(algorithm.phases) != 1:
        raise ValueError(
            f"a discriminator needs an algorithm of 1 exchange a round, got {len(algorithm.phases)}: what others elect "
            "or gather first differs from fleet to fleet, and with it what an update means"
        )
    if not trusted:
        raise ValueError("a discriminator needs at least 1 trusted table, got none")
    server = algorithm.start(rng)
    changes, clean, constant = [], [], set(server.global_state)
    moves = bool(moving(algorithm.phases[0].schema))
    for is_clean, deviations in ((True, 0.0), (False, noise)):
        tables = [with_noise(table, deviations, rng) for table in trusted for _ in range(COPIES)]
        found, end = _changes(algorithm, server, tables, rounds, rng)
        changes += found
        clean += [is_clean] * len(found)
        constant = {name for name in constant if np.array_equal(server.global_state[name], end.global_state[name])}
    if not changes:
        raise ValueError("expected trusted tables that give updates, got none: they may be shorter than a washout")
    context = joined({CONTEXT: {name: server.global_state[name] for name in sorted(constant)}})
    return {**fit(np.array(changes), np.array(clean), rng, epochs=epochs), **context, MOVES: np.array(moves)}


def with_noise(table: Arrays, deviations: float, rng: np.random.Generator) -> Arrays:
    """Return a table with normal noise on every feature, in deviations of that feature."""
    x = np.asarray(table[FEATURES], dtype=np.float64)
    return {**table, FEATURES: x + deviations * x.std(axis=0) * rng.standard_normal(x.shape)}


def _changes(
    algorithm: Algorithm, server: Server, tables: Sequence[Arrays], rounds: int, rng: np.random.Generator
) -> tuple[list[Floats], Server]:
    """Train on tables, each a gateway; return what every update would take away, and the server at the end."""
    (phase,), found = algorithm.phases, []
    local_state: list[Arrays] = [{} for _ in tables]
    for _ in range(rounds):
        total: Arrays = {}
        for index, table in enumerate(tables):
            local_state[index], update = phase.train(server.global_state, local_state[index], table, rng)
            if update:
                admitted = phase.admit(server, update)
                found.append(taken_away(phase.schema, admitted))
                total = phase.reducer.merge(total, admitted)
        server = close_round(algorithm, server, total)
    return found, server


def taken_away(schema: Schema, update: Mapping[str, Array]) -> Floats:
    """Return what the network sees of an admitted update: W_t - W_{t+1}, as a vector (P,)."""
    return -change_of(schema, update)


def check_context(network: Mapping[str, Array], global_state: Mapping[str, Array]) -> None:
    """Raise `ContextError`, naming both, where what gateways share is not what the network was trained with, or where
    it is no network at all.
    """
    _check_whole(network)
    for name, expected in parted(network).get(CONTEXT, {}).items():
        found = global_state.get(name)
        if found is None or not np.array_equal(expected, found):
            raise ContextError(
                f"{name}: expected {_shown(expected)}, with which the discriminator was trained, got {_shown(found)}; "
                "train it anew for these settings and this seed"
            )


def _check_whole(network: Mapping[str, Array]) -> None:
    """A file that lacks a layer must be refused when it is read: it would end the service with the first update."""
    inputs = len(first) if (first := network.get("layer0.weights")) is not None and first.ndim == 2 else 0
    expected: dict[str, tuple[int, ...]] = {SCALE: ()}
    for index, (before, after) in enumerate(pairwise((inputs, *SIZES, 1))):
        expected |= {f"layer{index}.weights": (before, after), f"layer{index}.bias": (after,)}
    for name, shape in expected.items():
        found = network.get(name)
        if found is None or found.shape != shape or not np.isfinite(found).all():
            raise ContextError(f"{name}: expected finite numbers {shape}, got {_shown(found)}; train it anew")
    if not network[SCALE] > 0.0:
        raise ContextError(f"{SCALE}: expected a number above 0, got {_shown(network[SCALE])}; train it anew")


def _shown(array: Array | None) -> str:
    if array is None:
        return "nothing"
    return array.tobytes().hex() if array.dtype == np.uint8 else np.array2string(array, threshold=8)
