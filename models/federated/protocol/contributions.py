"""How a gateway's part in a sum stays right while its data grows, shrinks or goes: it sends what changed, once (ours).

The cloud keeps one running total and no gateway's part of it. So the gateway remembers what the cloud has counted of
it (`counted.*`) and what it sent last (`sent.*`), and sends the difference between its present contribution and the
former. Whether the last one was counted it learns from two things: from `COUNTED`, what the cloud said of it, and from
the step of the cloud, which rises with every exchange that was merged. While that is still the step at which it sent,
nothing was merged, whatever was said.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import COUNTED, WEIGHT, Array, Arrays, alike, joined, parted

STEP = "step"
BEFORE, SENT = "counted", "sent"  # parts of a gateway's own state


class SetBackError(ValueError):
    """The cloud went back to a state from before it counted this gateway, so the two no longer agree on the sum."""


def weight_of(data: Mapping[str, Array]) -> float:
    """Return how much a gateway counts: one where its data says nothing, zero where it leaves.

    Raises `ValueError` for what is no weight.
    """
    weight = np.asarray(data.get(WEIGHT, 1.0), dtype=np.float64)
    if weight.shape != () or not np.isfinite(weight) or weight < 0.0:
        raise ValueError(f"{WEIGHT}: expected one number of at least 0, got {np.array2string(weight, threshold=5)}")
    return float(weight)


def settled(local_state: Arrays, data: Mapping[str, Array], step: int) -> Arrays:
    """Return a gateway's state with what it sent last moved to what was counted, where the cloud counted it.

    Raises `SetBackError` where the cloud is at a step before the one at which it counted this gateway.
    """
    parts = parted(local_state)
    sent = parts.get(SENT, {})
    if sent and step > int(sent[STEP]):
        local_state = {name: array for name, array in local_state.items() if not name.startswith(f"{SENT}.")}
        if bool(data.get(COUNTED, True)):
            merged = {**sent, STEP: np.asarray(sent[STEP] + 1)}  # the exchange after which the cloud held it
            local_state = {**local_state, **joined({BEFORE: merged})}
    counted_at = int(local_state.get(f"{BEFORE}.{STEP}", 0))
    if step < counted_at:
        raise SetBackError(
            f"the cloud is at step {step}, expected {counted_at} or more, at which it had counted this gateway: it was "
            "restored from an older state, and what it holds of whom is no longer known; start a new training with "
            "another seed"
        )
    return local_state


def difference(local_state: Arrays, present: Arrays, step: int, sizes: Mapping[str, Array]) -> tuple[Arrays, Arrays]:
    """Return the state of a gateway (`settled` before) that sends, and what changed since it was last counted.

    Nothing has where the two differ by rounding alone (`alike`, with the `sizes` of `present`), as after an update of a
    library: the model would be another one in its last bits, and each of the rows would be claimed to be new.
    """
    before = {name: array for name, array in parted(local_state).get(BEFORE, {}).items() if name != STEP}
    present = before if alike(before, present, sizes) else present
    change = {name: np.asarray(array - before.get(name, 0.0)) for name, array in present.items()}
    at = np.array(step, dtype=np.int64)
    return {**local_state, **joined({SENT: {**present, STEP: at}})}, change
