"""What may not leave a gateway of a simulated world, and a look for it in everything that does.

Nor may a secret serve twice: no two trainings are given the same, and of the gateway that began a masked round under
some keys no more than one answer to each exchange leaves, whatever was cut off, set back or copied meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedgate.config.protocol import wire
from fedgate.firmware_sim.world.environment.setup import gateway_of
from fedgate.gateway_agent.state import SECRET
from fedgate.gateway_agent.training.training import OWN
from fedgate.models.arrays import Arrays, is_fleeting
from fedgate.models.federated.protocol.algorithm import NORMALISATION
from fedgate.models.federated.secure_aggregation.client import MASKED, SEALED, SHARES, SIGNATURE, TOKEN
from fedgate.models.federated.secure_aggregation.keys import chained
from fedgate.models.federated.secure_aggregation.options import AGREEMENT

PRIVATE = set(NORMALISATION)  # names in `own`; of others the algorithm sends what it keeps
STEPS = (AGREEMENT, SEALED, MASKED, SIGNATURE, SHARES)  # what tells an answer to each exchange of a masked round
NEEDLE_BYTES_MIN = 12  # what is shorter may be there by chance


class Privacy:
    """What is private of each gateway, as bytes to look for."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._rows: dict[str, list[NDArray[np.float32]]] = {}
        self._own: dict[str, Arrays] = {}
        self._secrets: dict[str, bytes] = {}
        self._bodies: list[tuple[str, bytes]] = []
        self._drawn: dict[bytes, str] = {}  # whose

    def trains(self, name: str, job: bytes) -> None:
        """See that a training is given a secret that none was given before."""
        drawn = bytes.fromhex(wire.decode(job, size_max=len(job))[1]["drawn"])
        if drawn in self._drawn:
            self._violate(f"{name} draws keys and noise from a secret that served before")
        self._drawn[drawn] = name

    def row(self, name: str, row: NDArray[np.float32]) -> None:
        """Take note of a window of a baseline."""
        self._rows.setdefault(name, []).append(row)

    def keep(self, name: str, key: str, body: bytes) -> None:
        """Take note of what a gateway stores for itself."""
        if key == OWN:
            arrays, _ = wire.decode(body, size_max=len(body))
            if any(map(is_fleeting, arrays)):
                self._violate(f"{name} stored a secret of an exchange")
            private = {key: array for key, array in arrays.items() if key in PRIVATE}
            self._own[name] = {**self._own.get(name, {}), **private}
        elif key == SECRET:
            self._secrets[name] = body

    def leaves(self, name: str, body: bytes) -> None:
        """Take note of an update, which is looked through in the end, when all that is private is known."""
        self._bodies.append((name, body))

    def check_secret(self, name: str, payload: bytes) -> None:
        """Look through any message for the secret of its sender."""
        secret = self._secrets.get(name)
        if secret is not None and (secret in payload or secret.hex().encode() in payload):
            self._violate(f"{name} published its secret")

    def needles(self, name: str) -> list[bytes]:
        """Return the bytes of what is private: windows as they are and in units of the gateway, and its own tensors."""
        rows = np.array(self._rows.get(name, ()))  # (n, F)
        own = self._own.get(name, {})
        forms: list[NDArray[np.generic]] = []
        if len(rows):
            forms += [rows, rows.astype(np.float64)]
        if len(rows) and "center" in own:
            z = (rows.astype(np.float64) - own["center"]) / own["scale"]
            forms += [z, z.astype(np.float32)]
        found = [row.tobytes() for form in forms for row in form]
        found += [array.tobytes() for array in own.values() if array.any()]
        found += [drawn for drawn, owner in self._drawn.items() if gateway_of(owner) == name]
        return sorted({needle for needle in found if len(needle) >= NEEDLE_BYTES_MIN and any(needle)})

    def audit(self) -> None:
        """Look through all updates; and see that what is looked for would be found."""
        answers: dict[tuple[bytes, int], bytes] = {}
        for owner, body in self._bodies:
            for key, answer in _masked(body):
                if answers.setdefault(key, answer) != answer:
                    self._violate(f"{owner} answered exchange {key[1]} of a masked round twice under the same keys")
        for name in sorted(self._rows):
            needles = self.needles(name)
            for owner, body in self._bodies:
                if owner == name and any(needle in body for needle in needles):
                    self._violate(f"an update of {name} holds an array that is its own")
            control = wire.encode({"rows": np.array(self._rows[name][-2:])})
            if not any(needle in control for needle in needles):
                self._violate(f"a window of {name} in a message would not have been found")


def _masked(body: bytes) -> Iterator[tuple[tuple[bytes, int], bytes]]:
    """Yield, for an answer to a masked exchange, whose it is and to which, and what it says."""
    arrays, _ = wire.decode(body, size_max=len(body))
    if TOKEN in arrays:
        step = next(number for number, name in enumerate(STEPS) if name in arrays)
        began = chained(arrays[TOKEN].tobytes(), step)
        yield (began, step), wire.encode(arrays)
