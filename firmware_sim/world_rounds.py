"""Whether a simulated aggregator does what the plain loop does: the same updates, each once, the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloud_aggregator import events
from cloud_aggregator.state import State, training_place
from config import wire
from models.arrays import Arrays, equal, finite
from models.federated.algorithm import Algorithm, Server, UpdateError, close_round

TOLERANCE = 1e-9  # sums of floats depend on their order, and a solver doubles that
FAILED = (ArithmeticError, LookupError, TypeError, ValueError)


class Rounds:
    """The rounds of a world, with the bodies of all updates that gateways committed, by gateway and digest."""

    def __init__(self, updates: Mapping[tuple[str, str], bytes], violate: Callable[[str], None]) -> None:
        self._updates, self._violate = updates, violate
        self.counted: set[tuple[str, str]] = set()  # gateway and digest: durable
        self._server: Server | None = None  # as of the last commit
        self._closed: dict[tuple[str, int], tuple[str, ...]] = {}

    def saved(self, training: bytes) -> None:
        """Take note of what a stored training says of who was counted."""
        _, said = training_place(training)
        self.counted |= {*said["counted"].items(), *said["counted_before"].items()}

    def stepped(self, before: State, after: State, effects: Sequence[Any]) -> None:
        """Hold one committed step against the loop: what was counted, and what became of the round."""
        closed = [effect for effect in effects if isinstance(effect, events.RecordRound)]
        for record in closed:
            digests = {gateway: after.counted_before[gateway] for gateway in record.gateways}
            self._close(before, after.server, record, digests)
        if not closed and after.counted != before.counted:
            self._compare_total(after)
        if any(isinstance(effect, events.SaveTraining) for effect in effects):
            self._server = after.server

    def _close(self, before: State, server: Server, record: events.RecordRound, digests: dict[str, str]) -> None:
        number = (record.run, record.round_index)
        if number in self._closed:
            self._violate(f"round {record.round_index} was decided twice")
        self._closed[number] = record.gateways
        total = self._total(before.algorithm, before.server, digests)
        expected = loop(before.algorithm, before.server, total)
        if not _same(expected, server, before.algorithm):
            self._violate(f"round {record.round_index} ended in another model than the loop over its updates")

    def _total(self, algorithm: Algorithm, server: Server, digests: Mapping[str, str]) -> Arrays:
        phase, total = algorithm.phases[server.phase], Arrays()
        for gateway, digest in sorted(digests.items()):
            body = self._updates.get((gateway, digest))
            if body is None:
                self._violate(f"an update of {gateway} was counted that it never committed: {digest[:12]}")
                continue
            update, meta = wire.decode(body, size_max=len(body))
            if meta["round_index"] != server.round_index:
                self._violate(f"an update of {gateway} for round {meta['round_index']} was counted in another")
            try:
                total = phase.tally.merge(total, phase.admit(server, update)) if update else total
            except UpdateError as error:
                self._violate(f"an update of {gateway} was counted that is not admitted: {error}")
        return total

    def _compare_total(self, state: State) -> None:
        expected = self._total(state.algorithm, state.server, state.counted)
        additive = state.algorithm.phases[state.server.phase].tally.additive
        if not equal(state.total, expected, TOLERANCE if additive else 0.0):
            self._violate(f"round {state.server.round_index}: what was summed is not the sum of what was counted")

    def resumed(self, state: State) -> None:
        """See that a restart goes on with the parameters, and the sum, that were stored."""
        if self._server is not None and not _same(self._server, state.server, state.algorithm):
            self._violate(f"round {state.server.round_index}: a restart went on with other parameters")
        self._compare_total(state)

    def audit(self, rows: Sequence[dict[str, Any]]) -> None:
        """Compare the registry of rounds with what was seen of them."""
        seen: set[tuple[str, int]] = set()
        for row in rows:
            number, gateways = (row["run"], row["round_index"]), row["gateways"].split()
            if number in seen or len(set(gateways)) != len(gateways):
                self._violate(f"round {row['round_index']} is in the registry twice, or a gateway twice in it")
            seen.add(number)
        if seen != self._closed.keys():
            self._violate(f"rounds in the registry and rounds decided differ: {sorted(seen ^ self._closed.keys())}")


def loop(algorithm: Algorithm, server: Server, total: Arrays) -> Server:
    """Return the server after a round as the plain loop has it; one that fails changes nothing."""
    try:
        advanced = close_round(algorithm, server, total)
        if finite(advanced.shared):
            return advanced
    except FAILED:
        pass
    return close_round(algorithm, server, {})


def _same(one: Server, other: Server, algorithm: Algorithm) -> bool:
    additive = all(phase.tally.additive for phase in algorithm.phases)
    tolerance = TOLERANCE if additive else 0.0
    place = (one.phase, one.round_index, one.cohort_index) == (other.phase, other.round_index, other.cohort_index)
    return place and equal(one.shared, other.shared, tolerance) and equal(one.kept, other.kept, tolerance)
