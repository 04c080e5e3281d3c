"""The training, in a child process of its own: its memory returns when it ends and sampling never waits for it.

Run as `python -m fedgate.gateway_agent.runtime.training_worker`: a job on standard input, the answer on standard
output, both in the wire format. The heavy imports (scipy, scikit-learn, torch) happen here and nowhere else on a
gateway.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import find_first_problem
from fedgate.models.arrays import (
    END_NS,
    FEATURES,
    IDENTITY,
    LABELS,
    MEMBERS,
    MISSING,
    NEVER,
    NEW_SERIES,
    SECRET,
    WEIGHT,
    Arrays,
    generator,
    joined,
    parted,
)
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import NOTHING_TO_SEND
from fedgate.models.federated.wrappers.differential_privacy import PrivacyWarning

OOM_SCORE = Path("/proc/self/oom_score_adj")
KEY_BYTES = 32  # of P-256
NEEDS_SECRET = ("masking", "privacy")  # settings under which a gateway draws what nobody else may know
LEAVES = "nothing to send: training.weight is zero, and nothing of this gateway is in the sum"
# With a baseline alone there is one class. A gateway says so and sends nothing, so that the others need not wait.
NO_LABELS = (
    "nothing to send: the algorithm learns from labels and this gateway has none: name a table in training.labelled"
)


def answer(job: bytes, files: Sequence[Path] = ()) -> bytes:
    """Return `own` and `update` of one training as bytes, with `remarks`: what it warned of and why it has no update.

    `files` are the gateway's own key, the site's root key and the statement that it signed; none where it was not
    enrolled. Equal jobs give equal answers.
    """
    arrays, order = wire.decode(job, size_max=len(job))
    parts = parted(arrays)
    algorithm = build(order["algorithm"], order["feature_count"], order["settings"])
    secret, drawn = bytes.fromhex(order["secret"]), np.frombuffer(_draw_secret(order), dtype=np.uint8)
    rng = generator(order["seed"], order["round_index"] // algorithm.stride, order["gateway"], secret)
    own, data, known = parts.get("own", {}), {**parts["data"], SECRET: drawn}, parts.get("labelled", {})
    data |= _describe_membership(*files) if files and order["settings"].get("masking") is not None else {}
    if algorithm.labels and not known:
        return wire.encode(joined({"own": own, "update": {}}), {"remarks": [NO_LABELS]})
    train = algorithm.phases[order["phase"]].train
    rows = add_labelled(data, known) if algorithm.labels else data
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own, update = train(parts.get("shared", {}), own, rows, rng)
    # In a later exchange of a round nothing is a usual answer, such as of those whom an election left out.
    is_first = order["phase"] <= algorithm.setup and order["phase"] % algorithm.stride == 0
    is_silent = not update and is_first
    remarks = sorted({str(warning.message) for warning in caught})
    if is_silent and not any(issubclass(warning.category, PrivacyWarning) for warning in caught):
        remarks.append(LEAVES if float(rows.get(WEIGHT, 1.0)) == 0.0 else NOTHING_TO_SEND)
    return wire.encode(joined({"own": own, "update": update}), {"remarks": remarks} if remarks else {})


def _draw_secret(order: dict[str, Any]) -> bytes:
    """Return the secret of the exchange; raises `ValueError` where there is none and nobody may guess what it gives."""
    drawn = bytes.fromhex(order["drawn"])
    asking = [key for key in NEEDS_SECRET if order["settings"].get(key) is not None]
    if asking and not drawn:
        raise ValueError(f"drawn: nothing given, expected 32 new bytes for each exchange with {asking[0]}")
    return drawn


def _describe_membership(key: Path, root: Path, keys: Path) -> Arrays:
    """Return what a gateway shows of itself in a masked round, and among whom it takes part; raises `ValueError`."""
    from fedgate.config.identity import pki, signing, statement

    number = pki.load_key(key).private_numbers().private_value.to_bytes(KEY_BYTES, "big")
    found = {IDENTITY: np.frombuffer(number, np.uint8)}
    try:
        stated = statement.check(keys.read_bytes(), signing.load_public(root))
    except (OSError, ValueError) as error:
        raise ValueError(f"{keys}: whom the site's root key names is not known ({error}); enrol this gateway") from None
    members = np.frombuffer(bytes.fromhex("".join(stated.members)), np.uint8)
    return {**found, MEMBERS: members.reshape(len(stated.members), -1)} if stated.members else found


def add_labelled(data: Arrays, known: Arrays) -> Arrays:
    """Return the baseline, which counts as normal, with the windows of known condition behind it."""
    normal = {LABELS: np.zeros(len(data[FEATURES]), dtype=np.int64)}
    gaps = np.where(np.arange(len(known[FEATURES])) == 0, NEW_SERIES, 0)
    unknown = np.full(len(gaps), NEVER)
    behind = {MISSING: gaps, END_NS: unknown} | known  # one recording, unless the table says what follows on what
    both = (FEATURES, LABELS, *(name for name in (MISSING, END_NS) if name in data))
    return data | {name: np.concatenate([(data | normal)[name], behind[name]]) for name in both}


def main() -> int:
    """Answer the job on standard input at low priority; a job that cannot be done ends with one line that says why."""
    nice, *files = sys.argv[1:] or ["0"]
    os.nice(int(nice))
    with suppress(OSError):  # where memory is short it is the training that must end, not the watching
        OOM_SCORE.write_text("800", encoding="ascii")
    try:
        answered = answer(sys.stdin.buffer.read(), [Path(one) for one in files])
    except ValidationError as error:
        sys.stderr.write(f"setting {find_first_problem(error)}\n")
        return 1
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    sys.stdout.buffer.write(answered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
