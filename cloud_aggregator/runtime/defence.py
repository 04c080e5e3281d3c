"""What a defence judges by: labelled tables that the operator trusts, and the discriminator trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedgate.config.protocol import wire
from fedgate.config.settings import labelled
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.arrays import Arrays, generator
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm

COIN = 0.6  # of held-out updates told right, below which a discriminator is not worth having


class MaterialError(ValueError):
    """A file that a defence needs and that cannot be used; the message names it and says what to do."""


class Material(NamedTuple):
    """What was read from the files that `[defence]` names."""

    trusted: tuple[Arrays, ...] = ()
    network: Arrays | None = None


NOTHING = Material()


def read(settings: AggregatorSettings) -> Material:
    """Return the trusted tables and the discriminator; raises `MaterialError` or
    `fedgate.config.settings.labelled.LabelledError`.
    """
    network = settings.defence.network
    return Material(read_tables(settings), None if network is None else _network(network, settings))


def read_tables(settings: AggregatorSettings) -> tuple[Arrays, ...]:
    """Return the tables that `defence.trusted` names; raises `fedgate.config.settings.labelled.LabelledError`."""
    return tuple(labelled.read(path, settings.features) for path in settings.defence.trusted)


def _network(path: Path, settings: AggregatorSettings) -> Arrays:
    made = "make it with cloud-aggregator train-discriminator"
    try:
        body = path.read_bytes()
        network, meta = wire.decode(body, size_max=len(body))
    except OSError as error:
        raise MaterialError(f"{path}: cannot be read ({error.strerror}); {made}") from None
    except wire.WireError as error:
        raise MaterialError(f"{path}: is no discriminator ({error}); {made}") from None
    wanted, found = settings.algorithm.model_dump(mode="json"), meta.get("algorithm")
    if not isinstance(found, dict) or _leave_out_compression(found) != _leave_out_compression(wanted):
        raise MaterialError(f"{path}: was trained for {found}, expected the [algorithm] at hand, {wanted}; {made}")
    return network


def _leave_out_compression(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Return an [algorithm] without how its updates travel: a discriminator sees them unpacked."""
    settings = algorithm.get("settings", {})
    return {**algorithm, "settings": {key: value for key, value in settings.items() if key != "compression"}}


def build_algorithm(settings: AggregatorSettings, material: Material) -> Algorithm:
    """Return the algorithm of the settings behind the defence they ask for.

    Raises `MaterialError` where the two do not go together or the files lack what the defence needs.
    """
    from fedgate.models.federated.defences.wrapper import Defence, with_update_filter

    choice, chosen = settings.algorithm, settings.defence
    algorithm = build(choice.name, len(feature_names(settings.features)), choice.settings)
    if chosen.kind == "none":
        return algorithm
    if choice.settings.get("masking") is not None:
        raise MaterialError(
            f"[defence] kind = {chosen.kind!r} given beside algorithm.settings.masking, expected one of both: a judge "
            "looks at single updates, and masks hide them"
        )
    defence = Defence(kind=chosen.kind, **chosen.settings)
    try:
        guarded = with_update_filter(algorithm, defence, material.trusted, material.network)
        guarded.start(generator(choice.seed, 0, "cloud"))  # a discriminator of another training is refused here
    except ValueError as error:
        raise MaterialError(f"[defence] kind = {chosen.kind!r} with {choice.name}: {error}") from None
    return guarded


def train(settings: AggregatorSettings, material: Material, noise: float) -> tuple[bytes, dict[str, Any]]:
    """Return the discriminator for this training as the bytes of its file, and what is to be told of it.

    Raises `ValueError` where the algorithm or the tables do not allow one.
    """
    from fedgate.models.federated.defences.discriminator import ACCURACY, train_discriminator

    choice = settings.algorithm
    algorithm = build(choice.name, len(feature_names(settings.features)), choice.settings)
    network = train_discriminator(algorithm, material.trusted, generator(choice.seed, 0, "cloud"), noise=noise)
    accuracy = float(network[ACCURACY])
    if not accuracy > COIN:
        raise MaterialError(
            f"defence.trusted: on these tables clean updates cannot be told from noisy ones, {accuracy:.1%} right of "
            "those held out; take more or longer tables, another algorithm, or kind = 'trusted', which looks at what "
            "an update does"
        )
    meta = {"algorithm": choice.model_dump(mode="json"), "tables": len(material.trusted), "noise": noise}
    return wire.encode(network, meta), {**meta, "accuracy": accuracy}
