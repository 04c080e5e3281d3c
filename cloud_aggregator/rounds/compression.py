"""How the updates of a training travel: as the settings say, or by the rule where they say nothing."""

from __future__ import annotations

from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build
from fedgate.models.federated.compression_default import UpdateSize, settle, update_size


def settle_compression(settings: AggregatorSettings) -> AggregatorSettings:
    """Return the settings that a training goes by, with what every gateway is told of compression."""
    count, choice = len(feature_names(settings.features)), settings.algorithm
    chosen = settle(choice.name, count, choice.settings)
    return settings.model_copy(update={"algorithm": choice.model_copy(update={"settings": chosen})})


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
