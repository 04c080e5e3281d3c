"""What a defence judges by: labelled tables that the operator trusts, and the discriminator trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from config import labelled, wire
from config.settings import AggregatorSettings
from models.arrays import Arrays, generator
from models.features import feature_names
from models.federated import build
from models.federated.algorithm import Algorithm


class MaterialError(ValueError):
    """A file that a defence needs and that cannot be used; the message names it and says what to do."""


class Material(NamedTuple):
    """What was read from the files that `[defence]` names."""

    trusted: tuple[Arrays, ...] = ()
    network: Arrays | None = None


NOTHING = Material()


def read(settings: AggregatorSettings) -> Material:
    """Return the trusted tables and the discriminator; raises `MaterialError` or `config.labelled.LabelledError`."""
    network = settings.defence.network
    return Material(read_tables(settings), None if network is None else _network(network))


def read_tables(settings: AggregatorSettings) -> tuple[Arrays, ...]:
    """Return the tables that `defence.trusted` names; raises `config.labelled.LabelledError`."""
    return tuple(labelled.read(path, settings.features) for path in settings.defence.trusted)


def _network(path: Path) -> Arrays:
    try:
        body = path.read_bytes()
        return wire.decode(body, size_max=len(body))[0]
    except (OSError, wire.WireError) as error:
        made = "make it with cloud-aggregator train-discriminator"
        raise MaterialError(f"{path}: cannot be read as a discriminator ({error}); {made}") from None


def algorithm_of(settings: AggregatorSettings, material: Material) -> Algorithm:
    """Return the algorithm of the settings behind the defence they ask for.

    Raises `ValueError` where the two do not go together or the files lack what the defence needs.
    """
    from models.federated.defended import Defence, defended

    choice, chosen = settings.algorithm, settings.defence
    algorithm = build(choice.name, len(feature_names(settings.features)), choice.settings)
    if chosen.kind == "none":
        return algorithm
    defence = Defence(kind=chosen.kind, **chosen.settings)
    guarded = defended(algorithm, defence, material.trusted, material.network)
    guarded.start(generator(choice.seed, 0, "cloud"))  # a discriminator of another training is refused here
    return guarded


def trained(settings: AggregatorSettings, material: Material, noise: float) -> tuple[bytes, dict[str, Any]]:
    """Return the discriminator for this training as the bytes of its file, and what is to be told of it.

    Raises `ValueError` where the algorithm or the tables do not allow one.
    """
    from models.federated.discriminator import ACCURACY, train_discriminator

    choice = settings.algorithm
    algorithm = build(choice.name, len(feature_names(settings.features)), choice.settings)
    network = train_discriminator(algorithm, material.trusted, generator(choice.seed, 0, "cloud"), noise=noise)
    said = {"tables": len(material.trusted), "noise": noise, "accuracy": float(network[ACCURACY])}
    return wire.encode(network, said), said
