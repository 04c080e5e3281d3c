"""Whether updates are compressed where nobody says so, and what that saves: one rule for all algorithms (ours).

    the exchange that makes the model bears error    a step of it, where the next one makes good what rounding left out
    and no other exchange would be rounded           without feedback nothing is made good
    and the table lets compression around it         no masks, no noise of the cloud, no shapes of any length
    and an update becomes a kibibyte smaller         less is lost among headers, digests and receipts

Then numbers travel as int8 with error feedback. What travels over a line is the aggregator's to settle: it writes the
answer into the settings that it trains by, which every gateway is sent (`docs/decisions/10-wrappers.md`). `build` does
what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedgate.models.arrays import generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.composition import FLOAT32, CompositionError, check_composition, model_phase
from fedgate.models.federated.protocol.schema import has_any_length, layout_of, numbers_in
from fedgate.models.federated.registry import NONE, build
from fedgate.models.federated.wrappers.error_feedback import FLOAT32_BYTES, WIDE_BYTES, Compression, narrowed

BY_DEFAULT = {"number": "int8"}
LEAST_SAVED_BYTES = 1_024  # of one update


class UpdateSize(NamedTuple):
    """What the arrays of an update take, headers left out: as they are, and as they travel."""

    plain_bytes: int
    sent_bytes: int

    @property
    def times_smaller(self) -> float:
        """Return by how much less travels."""
        return self.plain_bytes / max(self.sent_bytes, 1)


def settle(name: str, feature_count: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an algorithm with its compression settled: none, the one given, or that of the rule.

    Raises as `build` does.
    """
    given = settings.get("compression")
    others = {key: value for key, value in settings.items() if key != "compression"}
    if given == NONE:
        return others
    if given is None and is_worth_it(build(name, feature_count, others)):
        given = BY_DEFAULT
    return others if given is None else {**others, "compression": given}


def is_worth_it(algorithm: Algorithm) -> bool:
    """Tell whether the rule compresses the updates of an algorithm that nothing was said of."""
    try:
        check_composition(algorithm, "compression")
    except CompositionError:
        return False
    if algorithm.phases[model_phase(algorithm)].bears != "error":
        return False
    if any(phase.bears == "rounding" for phase in algorithm.phases):
        return False
    size = update_size(algorithm, {"compression": BY_DEFAULT})
    return size is not None and size.plain_bytes - size.sent_bytes >= LEAST_SAVED_BYTES


def update_size(algorithm: Algorithm, settings: Mapping[str, Any], server: Server | None = None) -> UpdateSize | None:
    """Return what an update takes with the compression of these settings: in the exchange at hand of a server, by
    default in that which makes the model; None where its shapes are known only later, or are of any length.
    """
    if server is None:
        server = algorithm.start(generator(0, 0, "cloud"))._replace(phase=model_phase(algorithm))
    phase, compression = algorithm.phases[server.phase], settings.get("compression")
    schema, state = phase.schema, server.global_state
    if has_any_length(schema):
        return None
    try:
        layout = layout_of(schema, state)
    except KeyError:  # shapes of what an exchange before makes
        return None
    wide = FLOAT32_BYTES if FLOAT32 in algorithm.traits else WIDE_BYTES
    count, narrow = numbers_in(layout.values()), 0
    each = wide if compression is None else Compression.model_validate(compression).bytes_per_entry
    if phase.bears != "nothing":
        narrow = numbers_in(layout[name] for name in narrowed(schema, state))
    return UpdateSize(wide * count, round(wide * (count - narrow) + each * narrow))
