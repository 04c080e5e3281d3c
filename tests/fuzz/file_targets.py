"""What lies in files: settings, tables of labelled windows, discriminators, keys, recordings."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedgate.cloud_aggregator.runtime import defence
from fedgate.config.identity import signing
from fedgate.config.protocol import wire
from fedgate.config.settings import labelled
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings, SettingsError, load
from fedgate.firmware_sim.mutation import resealed
from fedgate.firmware_sim.recordings import ReadOptions, RecordingError, describe, read, render
from fedgate.models.arrays import FEATURES as X
from fedgate.models.arrays import LABELS, generator
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated import build
from fedgate.models.federated.defences.discriminator import train_discriminator
from fedgate.models.federated.protocol.schema import UpdateError
from tests.fuzz.target import Target
from tests.support.recording_samples import sound_files
from tests.support.sites import FEATURES, SITE, faults

SPEC = FeatureSpec.model_validate(FEATURES)
ALGORITHM = {
    "name": "esn-fedavg",
    "settings": {"rounds": 2, "network": {"task": "classify", "units": 12, "washout": 4}},
}


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()  # kept by the cache until the process ends


def from_file(reader: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Return a reader of files as one of bytes."""

    def take(data: bytes) -> object:
        path = Path(_folder().name) / name
        path.write_bytes(data)
        return reader(path)

    return take


def _settings(name: str, kind: Any) -> Target:
    template = (resources.files("fedgate.config") / name).read_bytes()
    in_full = re.sub(rb"(?m)^# (\[|\w+ = |channels)", rb"\1", template)  # what the template leaves out put in too
    blocks = tuple(template.split(b"\n\n"))
    take = from_file(lambda path: load(path, kind), name)
    return Target(take, (SettingsError,), (template, in_full, b"\n\n".join(blocks[:3])), examples=150)


def _table() -> Target:
    rows = [",".join(map(repr, [*row, 0, 1])) for row in faults()["x"].tolist()]
    sound = ("\n".join([*labelled.head(SPEC), *rows]) + "\n").encode()
    cut = ("\n".join([*labelled.head(SPEC), *rows[:2]]) + "\n").encode()
    return Target(from_file(lambda path: labelled.read(path, SPEC), "t.csv"), (labelled.LabelledError,), (sound, cut))


def _discriminator() -> Target:
    """The file of a discriminator, and what it then says of an honest update."""
    given = {
        "aggregator": {"site": SITE},
        "features": FEATURES,
        "algorithm": ALGORITHM,
        "defence": {"kind": "network", "network": Path("discriminator.bin")},
    }
    settings = AggregatorSettings.model_validate(given)
    said = {"algorithm": settings.algorithm.model_dump(mode="json"), "tables": 1, "noise": 1.0}
    choice = settings.algorithm
    plain = build(choice.name, len(feature_names(SPEC)), choice.settings)
    data = {X: faults()[X], LABELS: np.arange(20) % 2}
    network = train_discriminator(plain, [data], generator(choice.seed, 0, "cloud"), rounds=2, epochs=1)
    server = plain.start(generator(choice.seed, 0, "cloud"))
    _, update = plain.phases[0].train(server.global_state, {}, data, np.random.default_rng(0))

    def judge(path: Path) -> None:
        chosen = settings.defence.model_copy(update={"network": path})
        named = settings.model_copy(update={"defence": chosen})
        algorithm = defence.build_algorithm(named, defence.read(named))
        begun = algorithm.start(generator(choice.seed, 0, "cloud"))
        with suppress(UpdateError):  # it may well refuse an update
            algorithm.phases[0].admit(begun, update)

    take = from_file(judge, "discriminator.bin")
    return Target(
        lambda data: take(resealed(data)), (defence.MaterialError,), (wire.encode(network, said),), examples=100
    )


def _keys(reader: Callable[[Path], object]) -> Target:
    folder = Path(_folder().name)
    if not (folder / "seed.key").exists():
        signing.make_key(folder / "seed.key", folder / "seed.pub")
    seeds = ((folder / "seed.key").read_bytes(), (folder / "seed.pub").read_bytes())
    return Target(from_file(reader, "key.pem"), (signing.KeyFileError,), seeds)


def _recording(ending: str, seeds: tuple[bytes, ...]) -> Target:
    def take(path: Path) -> None:
        result = read(path, ReadOptions())
        assert result.values.shape == (len(result.values), len(result.channels)) and not np.isinf(result.values).any()
        render(describe(result))

    return Target(from_file(take, f"recording{ending}"), (RecordingError,), seeds, examples=100)


@cache
def _sound() -> dict[str, tuple[bytes, ...]]:
    sound: dict[str, tuple[bytes, ...]] = {}
    for ending, data in sound_files():
        sound[ending] = (*sound.get(ending, ()), data)
    return sound


def targets() -> dict[str, Target]:
    """Return the targets of this file by name."""
    return {
        "settings-gateway": _settings("gateway.toml", GatewaySettings),
        "settings-aggregator": _settings("aggregator.toml", AggregatorSettings),
        "labelled": _table(),
        "discriminator": _discriminator(),
        "key-private": _keys(signing.load_private),
        "key-public": _keys(signing.load_public),
        **{f"recording{ending}": _recording(ending, seeds) for ending, seeds in _sound().items()},
    }
