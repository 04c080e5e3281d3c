"""How the updates of a training travel: as the settings say, or by the rule where they say nothing."""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.events import SaveTraining
from fedgate.cloud_aggregator.rounds.rounds import identify
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build
from fedgate.models.federated.compression_default import BY_DEFAULT, UpdateSize, settle, update_size
from fedgate.models.federated.registry import NONE

GOES_ON = (
    'this training was begun before updates were compressed by default and goes on as it was; compression = "none" in '
    f'[algorithm.settings] says that it shall, compression = {{ number = "{BY_DEFAULT["number"]}" }} begins a new one'
)


def settle_compression(settings: AggregatorSettings, training: SaveTraining | None) -> AggregatorSettings:
    """Return the settings that a training goes by, with what every gateway is told of compression.

    A stored training that was begun without any, by a build that had no rule, goes on without.
    """
    count, choice = len(feature_names(settings.features)), settings.algorithm
    as_written = _with(settings, settle(choice.name, count, {"compression": NONE, **choice.settings}))
    if training is not None and training.meta["run"].partition(".")[0] == identify(as_written):
        return as_written
    return _with(settings, settle(choice.name, count, choice.settings))


def _with(settings: AggregatorSettings, chosen: dict[str, Any]) -> AggregatorSettings:
    return settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"settings": chosen})})


def goes_on_uncompressed(settings: AggregatorSettings, settled: AggregatorSettings) -> bool:
    """Tell whether a training that was begun before the rule goes on without compression for that reason alone."""
    is_by_rule = "compression" not in settings.algorithm.settings
    return is_by_rule and settled.algorithm != settle_compression(settings, None).algorithm


def size_of_update(settled: AggregatorSettings) -> UpdateSize | None:
    """Return what an update of the exchange that makes the model takes; None where that is known only later."""
    choice = settled.algorithm
    return update_size(build(choice.name, len(feature_names(settled.features)), choice.settings), choice.settings)


def describe_updates(settled: AggregatorSettings) -> str:
    """Return how updates travel, for a person."""
    compression, size = settled.algorithm.settings.get("compression"), size_of_update(settled)
    bytes_of = "" if size is None else f", {size.sent_bytes:,} bytes of numbers each"
    if compression is None:
        return f"updates are not compressed{bytes_of}"
    times = "" if size is None else f" in place of {size.plain_bytes:,}: {size.times_smaller:.1f} times smaller"
    return f"updates travel as {compression.get('number', 'float32')}{bytes_of}{times}"
