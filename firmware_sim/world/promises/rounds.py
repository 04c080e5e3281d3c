"""Whether a simulated aggregator does what the plain loop does: the same updates, each once, the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import round_number
from fedgate.models.arrays import Arrays, equal, finite
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.schema import UpdateError

TOLERANCE = 1e-9  # sums of floats depend on their order, and a solver doubles that
FAILED = (ArithmeticError, LookupError, TypeError, ValueError)


class Rounds:
    """The rounds of a world, with the bodies of all updates that gateways committed, by gateway and digest."""

    def __init__(self, updates: Mapping[tuple[str, str], bytes], violate: Callable[[str], None]) -> None:
        self._updates, self._violate = updates, violate
        self.counted: set[tuple[str, str]] = set()  # gateway and digest: durable
        self._server: Server | None = None  # as of the last commit
        self._held: dict[str, str] = {}  # who is counted in the open round, as of the last commit
        self._used: set[tuple[str, str]] = set()  # gateway and digest: in rounds that are closed
        self._closed: set[tuple[str, int]] = set()
        self._kept: dict[tuple[str, int], str] = {}  # updates that came late: gateway and its round -> digest
        self._refused: dict[str, str] = {}  # by gateway: the round that it says it will not answer
        self.took_part: set[str] = set()  # who was counted in a round that was closed, or had refused it, see `calm`

    def kept(self, late: events.HoldUpdate) -> None:
        """Take note of an update that is stored, in its round or after it."""
        self._kept[late.gateway, late.round_index] = late.digest
        self.counted.add((late.gateway, late.digest))

    def calm(self) -> None:
        """Take note that nothing fails any more: from now on everybody is to take part."""
        self.took_part = set()

    def refuses(self, gateway: str, number: str) -> None:
        """Take note of the round, by its `round_number`, that a gateway says it will not answer."""
        self._refused[gateway] = number

    def closed(self, record: events.RecordRound) -> None:
        """Take note of a round in the registry."""
        number = round_number(record.run, record.round_index)
        self.took_part |= {*record.gateways, *(name for name, _ in record.late)}
        self.took_part |= {name for name, refused in self._refused.items() if refused == number}

    def saved(self, stored: Mapping[str, Any]) -> None:
        """Take note of what a stored training says of who was counted."""
        self._held = stored["counted"]
        self.counted |= {*stored["counted"].items(), *stored["counted_before"].items()}

    def stepped(self, trail: Sequence[State], effects: Sequence[Any]) -> None:
        """Hold committed steps against the loop: what was counted in each, and what became of the round."""
        for late in (effect for effect in effects if isinstance(effect, events.HoldUpdate)):
            rounds, age = trail[0].context.settings.rounds, trail[0].rounds.server.round_index - late.round_index
            if _is_in_time(late, trail):
                self._kept.pop((late.gateway, late.round_index))
            elif age > rounds.late_rounds or rounds.late == "refuse":  # it may have been closed in the same step
                self._violate(f"an answer of {late.gateway} to round {late.round_index} is kept, {age} rounds later")
        closed = iter([effect for effect in effects if isinstance(effect, events.RecordRound)])
        for before, after in pairwise(trail):
            if after.rounds.server.round_index != before.rounds.server.round_index:
                record = next(closed, None)
                if record is None:
                    self._violate(f"round {before.rounds.server.round_index} was closed and is not recorded")
                else:
                    self._close(before, after, record)
            elif after.rounds.counted != before.rounds.counted:
                self._compare_total(after)
        if any(isinstance(effect, events.SaveTraining) for effect in effects):
            self._server = trail[-1].rounds.server

    def _close(self, before: State, after: State, record: events.RecordRound) -> None:
        number, rounds = (record.run, record.round_index), before.context.settings.rounds
        digests = {gateway: after.rounds.counted_before[gateway] for gateway in record.gateways}
        for gateway, origin in record.late:
            if gateway in digests or (gateway, origin) not in self._kept:
                self._violate(f"round {record.round_index} counts {gateway} late, which was counted or never kept")
            elif not 0 < record.round_index - origin <= rounds.late_rounds or rounds.late == "refuse":
                self._violate(f"round {record.round_index} counts an answer of {gateway} to round {origin}")
            else:
                digests[gateway] = self._kept[gateway, origin]
        if number in self._closed:
            self._violate(f"round {record.round_index} was decided twice")
        self._closed.add(number)
        if again := self._used & digests.items():
            self._violate(f"updates were counted in two rounds: {sorted(again)}")
        self._used |= digests.items()
        if left_out := before.rounds.counted.keys() - set(record.gateways):
            if after.rounds.given_up <= before.rounds.given_up:
                self._violate(f"round {record.round_index} was not given up and leaves out {sorted(left_out)}")
            self._used |= {(gateway, before.rounds.counted[gateway]) for gateway in left_out}
        answers = dict.fromkeys(record.gateways, record.round_index) | dict(record.late)
        total = self._total(before.rounds.algorithm, before.rounds.server, digests, answers)
        expected = loop(before.rounds.algorithm, before.rounds.server, total)
        if not _same(expected, after.rounds.server, before.rounds.algorithm):
            self._violate(f"round {record.round_index} ended in another model than the loop over its updates")

    def _total(
        self, algorithm: Algorithm, server: Server, digests: Mapping[str, str], answers: Mapping[str, int]
    ) -> Arrays:
        phase, total = algorithm.phases[server.phase], Arrays()
        for gateway, digest in sorted(digests.items()):
            body = self._updates.get((gateway, digest))
            if body is None:
                self._violate(f"an update of {gateway} was counted that it never committed: {digest[:12]}")
                continue
            update, meta = wire.decode(body, size_max=len(body))
            if meta["round_index"] != answers[gateway]:
                self._violate(f"an update of {gateway} for round {meta['round_index']} was counted as another")
            try:
                total = phase.reducer.merge(total, phase.admit(server, update)) if update else total
            except UpdateError as error:
                self._violate(f"an update of {gateway} was counted that is not admitted: {error}")
        return total

    def _compare_total(self, state: State) -> None:
        answers = dict.fromkeys(state.rounds.counted, state.rounds.server.round_index)
        expected = self._total(state.rounds.algorithm, state.rounds.server, state.rounds.counted, answers)
        reducer = state.rounds.algorithm.phases[state.rounds.server.phase].reducer
        if not equal(
            reducer.closed(state.rounds.total), reducer.closed(expected), TOLERANCE if reducer.additive else 0.0
        ):
            self._violate(
                f"round {state.rounds.server.round_index}: what was summed is not the sum of what was counted"
            )

    def resumed(self, state: State) -> None:
        """See that a restart goes on with the parameters, and the sum, that were stored."""
        if self._server is not None and not _same(self._server, state.rounds.server, state.rounds.algorithm):
            self._violate(f"round {state.rounds.server.round_index}: a restart went on with other parameters")
        if state.rounds.counted != self._held:
            text = f"a restart counts {sorted(state.rounds.counted)}, stored were {sorted(self._held)}"
            self._violate(f"round {state.rounds.server.round_index}: {text}")
        self._compare_total(state)

    def audit(self, rows: Sequence[dict[str, Any]], acknowledged: set[tuple[str, str]]) -> None:
        """Compare the registry of rounds with what was seen of them, and see that no acknowledged update is missing."""
        waiting = {(gateway, digest) for (gateway, _), digest in self._kept.items()}
        for gateway, digest in sorted(acknowledged - self._used - self._held.items() - waiting):
            self._violate(f"an update of {gateway} was acknowledged and is in no round: {digest[:12]}")
        seen: set[tuple[str, int]] = set()
        for row in rows:
            number, gateways = (row["run"], row["round_index"]), row["gateways"].split()
            if number in seen or len(set(gateways)) != len(gateways):
                self._violate(f"round {row['round_index']} is in the registry twice, or a gateway twice in it")
            seen.add(number)
        if seen != self._closed:
            self._violate(f"rounds in the registry and rounds decided differ: {sorted(seen ^ self._closed)}")


def _is_in_time(stored: events.HoldUpdate, trail: Sequence[State]) -> bool:
    """Tell whether an update was counted in its own round, which may have been closed with it."""
    name, index, digest = stored.gateway, stored.round_index, stored.digest
    return any(
        digest in (after.rounds.counted.get(name), after.rounds.counted_before.get(name))
        for before, after in pairwise(trail)
        if before.rounds.server.round_index == index
    )


def loop(algorithm: Algorithm, server: Server, total: Arrays) -> Server:
    """Return the server after a round as the plain loop has it; one that fails changes nothing."""
    try:
        advanced = close_round(algorithm, server, total)
        if finite(advanced.global_state):
            return advanced
    except FAILED:
        pass
    return close_round(algorithm, server, {})


def _same(one: Server, other: Server, algorithm: Algorithm) -> bool:
    additive = all(phase.reducer.additive for phase in algorithm.phases)
    tolerance = TOLERANCE if additive else 0.0
    place = (one.phase, one.round_index, one.cohort_index) == (other.phase, other.round_index, other.cohort_index)
    return (
        place
        and equal(one.global_state, other.global_state, tolerance)
        and equal(one.server_state, other.server_state, tolerance)
    )
