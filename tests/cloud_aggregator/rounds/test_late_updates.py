"""Updates that come after their round: kept for the next, or refused with the reason, and never counted twice.

Method: a service with a real store; the oracle adds up by hand what the stored rounds say was counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.events import Log, Tick
from fedgate.cloud_aggregator.rounds import late_updates, round
from fedgate.cloud_aggregator.rounds.round import LOST_S
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Receipt, RoundOpen, Status, round_number
from fedgate.models.arrays import Arrays
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.federated.protocol.schema import Role, UpdateError
from tests.support.cloud_service import NAMES, READY, Cloud, cloud, heard, mean_of, said_under
from tests.support.sites import aggregator_settings, with_record

YES = [Receipt(accepted=True)]
KEPT = [Receipt(accepted=True, counts_in=1)]  # of one that answers the first round, in the second
DEADLINE_S = 60.0
POLICY: dict[str, Any] = {"rounds": {"quorum": 1, "deadline_s": DEADLINE_S}}


def closed(made: Cloud, *who: str, value: float = 1.0) -> None:
    """Let some gateways answer the present round, and its deadline pass."""
    for gateway in who:
        assert made.send(gateway, made.body(value)) == YES
    made.hear(Tick(), after_s=DEADLINE_S)


def counted(made: Cloud) -> list[tuple[list[str], list[str]]]:
    rows = made.service.store.read_rows("rounds", "gateways", "late")
    return [(row["gateways"].split(), (row["late"] or "").split()) for row in rows]


def test_a_late_update_counts_in_the_next_round_where_its_gateway_is_silent(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow = made.body(9.0)
        closed(made, "north")
        assert made.send("west", slow) == KEPT and made.send("west", slow) == KEPT  # its first receipt was lost
        assert list(made.service.state.rounds.held) == ["west"] and made.w == 1.0
        closed(made, "north")
        assert counted(made) == [(["north"], []), (["north"], ["west:0"])]
        assert made.w == 1.0 + (1.0 + 9.0) / 2
        assert made.send("west", slow) == KEPT and made.service.state.rounds.held == {}  # and it is known as counted
        closed(made, "north")
        assert counted(made)[-1] == (["north"], [])


def test_what_the_server_no_longer_admits_when_the_round_is_closed_is_dropped_and_said(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow = made.body(9.0)
        closed(made, "north")
        made.send("west", slow)
        (phase,) = made.algorithm.phases

        def check(server: Server, update: Arrays) -> None:
            if float(update["w"][0]) > 5.0:
                raise UpdateError("longer than the server of this round bears")

        stricter = made.algorithm._replace(phases=(phase._replace(check=check),))
        made.service.state = with_record(made.service.state, "rounds", algorithm=stricter)
        closed(made, "north")
        assert counted(made)[-1] == (["north"], []) and made.w == 2.0 and made.service.state.rounds.held == {}
        (said,) = [one.text for one in made.said if isinstance(one, Log) and one.level == "warning"]
        assert said == "round 1: 1 of the updates of earlier rounds cannot be counted any more"


def test_a_gateway_that_answers_the_next_round_itself_is_counted_once_in_it(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow = made.body(9.0)
        closed(made, "north")
        made.send("west", slow)
        closed(made, "west", value=5.0)
        assert counted(made)[-1] == (["west"], []) and made.w == 6.0 and made.service.state.rounds.held == {}
        assert not made.service.store.read_rows("held")
        assert not made.send("west", slow)[0].accepted  # two rounds ago by now


def test_a_late_update_counts_where_its_gateway_answers_the_next_round_with_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow = made.body(9.0)
        closed(made, "north")
        state = made.service.state.rounds
        nothing = wire.encode({}, {"run": state.run, "round_index": state.server.round_index, "phase": 0})
        assert made.send("west", slow) == KEPT and made.send("west", nothing) == YES
        made.hear(Tick(), after_s=DEADLINE_S)
        assert counted(made)[-1] == (["west"], ["west:0"]) and made.w == 1.0 + 9.0


def test_a_round_that_is_given_up_moves_no_model_also_not_by_what_was_late(tmp_path: Path) -> None:
    """Goal: one gateway's late update, and answers that do not fit, never make a round of that one alone."""
    with cloud(tmp_path, mean_of(3), rounds={"quorum": 2, "deadline_s": DEADLINE_S}) as made:
        slow = made.body(9.0)
        closed(made, "north", "east")
        assert made.send("west", slow) == KEPT and made.send("north", made.body(5.0)) == YES
        for gateway in ("west", "east"):
            assert not made.send(gateway, made.wrong())[0].accepted
        made.hear(Tick(), after_s=LOST_S)
        assert made.service.state.rounds.given_up == 1 and made.w == 1.0
        assert made.service.state.rounds.held == {} and not made.service.store.read_rows("held")
        assert counted(made)[-1] == ([], [])
        text = "round 1: 1 of the updates of earlier rounds cannot be counted any more"
        assert text in [one.text for one in made.said if isinstance(one, Log)]
        made.hear(Tick(), after_s=DEADLINE_S)  # the next round opens ...
        made.restart()
        said = [one.payload for one in said_under("round", made.said) if one.payload]
        invited = [RoundOpen.from_bytes(payload) for payload in said]
        assert [(one.round_index, one.abandoned) for one in invited[-2:]] == [(2, (1,)), (2, (1,))]  # ... and says so


def test_a_round_for_which_nothing_was_acknowledged_is_not_among_those_that_came_to_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        state = made.service.state.rounds
        nothing = wire.encode({}, {"run": state.run, "round_index": 0, "phase": 0})
        assert made.send("west", nothing) == YES
        made.hear(Tick(), after_s=DEADLINE_S)
        after = made.service.state.rounds
        assert (after.server.round_index, after.abandoned) == (1, ())


def test_of_rounds_that_came_to_nothing_the_newest_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round, "ABANDONED_KEPT", 3)
    with cloud(tmp_path, mean_of(3), rounds={"quorum": 3, "deadline_s": DEADLINE_S}) as made:
        for number in range(5):
            assert made.send("north", made.body(1.0)) == YES
            for gateway in ("west", "east"):
                assert not made.send(gateway, made.wrong())[0].accepted
            made.hear(Tick(), after_s=LOST_S * 2**number)
            made.hear(Tick(), after_s=DEADLINE_S)
        assert made.service.state.rounds.abandoned == (2, 3, 4)


def test_a_second_update_for_a_round_that_was_answered_is_refused(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow, slower, other = made.body(9.0), made.body(8.0), made.body(7.0)
        closed(made, "north")
        assert made.send("west", slow) == KEPT
        for gateway, body in (("west", slower), ("north", other)):
            (receipt,) = made.send(gateway, body)
            assert "another update of this gateway was counted or kept since round 0" in receipt.reason


def test_what_is_kept_survives_a_restart(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        slow, slower = made.body(9.0), made.body(3.0)
        closed(made, "north")
        made.send("west", slow)
        made.send("east", slower)
        made.restart()
        assert list(made.service.state.rounds.held) == ["west", "east"]  # in the order of arrival
        assert made.send("west", slow) == KEPT
        closed(made, "north")
        assert counted(made)[-1] == (["north"], ["west:0", "east:0"]) and made.w == pytest.approx(1.0 + 13.0 / 3)


@pytest.mark.parametrize(("late_rounds", "taken"), [(1, 1), (2, 2), (3, 3)])
def test_an_update_that_is_too_old_is_refused_with_the_reason(tmp_path: Path, late_rounds: int, taken: int) -> None:
    rounds = POLICY["rounds"] | {"late_rounds": late_rounds}
    with cloud(tmp_path, mean_of(3), rounds=rounds) as made:
        slow = made.body(9.0)
        for age in range(1, 5):
            closed(made, "north")
            before = made.service.state
            (receipt,) = made.send("west", slow)
            assert receipt.accepted == (age <= taken)
            if not receipt.accepted:
                assert f"round 0, {age} rounds ago; updates are kept for {late_rounds} at most" in receipt.reason
            made.service.state = before  # as if it had come a round later


def test_the_policy_refuse_and_sums_that_do_not_bear_it_refuse(tmp_path: Path) -> None:
    cases: dict[str, tuple[Role, str]] = {"refuse": ("delta", "refuse"), "contributions": ("full", "next-round")}
    for name, (role, policy) in cases.items():
        (folder := tmp_path / name).mkdir()
        with cloud(folder, mean_of(3, role=role), rounds=POLICY["rounds"] | {"late": policy}) as made:
            slow = made.body(9.0)
            closed(made, "north")
            (receipt,) = made.send("west", slow)
            assert "the present round is" in receipt.reason and not made.service.state.rounds.held


def test_what_could_not_count_is_not_kept(tmp_path: Path) -> None:
    limits = {"max_update_bytes": 2_000, "incoming_bytes": 4_000}
    with cloud(tmp_path, mean_of(400), **POLICY, limits=limits) as made:
        bodies = {name: made.body(value) for name, value in (("east", 1.0), ("west", 2.0), ("nan", float("nan")))}
        closed(made, "north")
        assert "expected finite values" in made.send("west", bodies["nan"])[0].reason
        assert made.send("west", bodies["west"]) == KEPT
        (receipt,) = made.send("east", bodies["east"])
        assert receipt.reason == "of late updates 2000 bytes are kept at most, see limits.incoming_bytes"
        assert list(made.service.state.rounds.held) == ["west"]


@pytest.mark.parametrize("narrowed", [False, True])
def test_what_is_kept_never_takes_the_room_of_the_round_that_is_open(tmp_path: Path, narrowed: bool) -> None:
    names = [f"gateway-{number}" for number in range(8)]
    limits = {"max_update_bytes": 2_000, "incoming_bytes": 8_000}
    rounds = {"quorum": 2, "deadline_s": DEADLINE_S}
    with cloud(tmp_path, mean_of(400), names, rounds=rounds, limits=limits) as made:
        late_bodies = {name: made.body(1.0) for name in names}
        closed(made, *names[:2])
        kept = [name for name in names[2:] if made.send(name, late_bodies[name]) == KEPT]
        assert kept == names[2:4] == list(made.service.state.rounds.held)  # half of what may come
        if narrowed:  # the limits are less than what is kept already
            made.settings = aggregator_settings(rounds=rounds, limits={**limits, "incoming_bytes": 2_000})
            made.restart()
        closed(made, *names[6:])
        assert counted(made)[-1] == (names[6:], [f"{name}:0" for name in kept]) and not made.service.state.rounds.held


def test_who_was_not_asked_in_a_round_cannot_answer_it_late(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), rounds=POLICY["rounds"] | {"fraction": 0.67}) as made:
        asked = made.service.state.rounds.asked
        assert asked is not None and len(asked) == 2
        outsider = next(name for name in NAMES if name not in asked)
        slow = made.body(9.0)
        closed(made, asked[0])
        (receipt,) = made.send(outsider, slow)
        assert receipt.reason == "this gateway was not asked in round 0"
        assert made.send(asked[1], slow) == KEPT


STEPS = st.lists(
    st.tuples(st.sampled_from(["answer", "late", "close", "restart"]), st.sampled_from(NAMES)), max_size=25
)


@pytest.mark.soak
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS, late_rounds=st.integers(1, 3))
def test_the_model_is_that_of_the_updates_that_the_rounds_name(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]], late_rounds: int
) -> None:
    rounds = POLICY["rounds"] | {"late_rounds": late_rounds}
    with cloud(tmp_path_factory.mktemp("cloud"), mean_of(2), rounds=rounds) as made:
        value, sent, w = 0.0, dict[tuple[str, int], float](), 0.0
        for what, who in [*steps, ("close", "")]:
            index = made.service.state.rounds.server.round_index
            value += 1.0
            if what in ("answer", "late"):
                origin = index if what == "answer" else max(index - late_rounds, 0)
                if made.send(who, made.body(value, origin))[0].accepted and (who, origin) not in sent:
                    sent[who, origin] = value
            elif what == "close":
                made.hear(Tick(), after_s=DEADLINE_S)
            else:
                made.restart()
        for index, (fresh, others) in enumerate(counted(made)):
            pairs = [(who, index) for who in fresh] + [(one.split(":")[0], int(one.split(":")[1])) for one in others]
            assert len({who for who, _ in pairs}) == len(pairs)  # nobody twice in a round
            assert all(0 < index - origin <= late_rounds for _, origin in pairs[len(fresh) :])
            w += sum(sent.pop(pair) for pair in pairs) / len(pairs)  # nor an update in two: it is gone then
        assert made.w == pytest.approx(w)


def test_which_algorithms_bear_it() -> None:
    bearing = {name for name in ALGORITHMS if late_updates.can_wait(build(name, 3, {}))}
    assert "robust-svm-subgradient" in bearing and "esn-fedavg" in bearing
    assert not bearing & {"incfed", "partial-incfed", "ensemble-svdd", "robust-svm-admm", "conditional-fedavg"}
    assert late_updates.can_wait(build("fedavg", 3, {"loss": "logistic"})) and not late_updates.can_wait(
        build("fedavg", 3, {})
    )


@pytest.mark.parametrize("says", ["its status", "its update"])
def test_who_will_not_answer_is_not_waited_for(tmp_path: Path, says: str) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        for gateway in ("east", "north"):
            made.send(gateway, made.body(1.0))
        assert made.service.state.rounds.server.round_index == 0
        if says == "its status":
            number = round_number(made.service.state.rounds.run, 0)
            failed = READY.model_copy(update={"refusal": "training failed", "refused_round": number})
            made.hear(heard("west", "status", failed.to_bytes()))
        else:
            assert not made.send("west", made.body(float("inf")))[0].accepted
            made.hear(Tick())
        assert made.service.state.rounds.server.round_index == 1
        for gateway in ("east", "north"):  # and of the next round it has said nothing
            made.send(gateway, made.body(1.0))
        assert made.service.state.rounds.server.round_index == 1


def test_a_gateway_that_leaves_is_not_waited_for_and_one_that_returns_is(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(3), **POLICY) as made:
        made.hear(heard("west", "status", Status(state="offline").to_bytes()))
        made.send("east", made.body(1.0))
        made.hear(heard("west", "status", READY.to_bytes()))
        made.send("north", made.body(1.0))
        assert made.service.state.rounds.server.round_index == 0
        made.hear(heard("west", "status", Status(state="offline").to_bytes()))
        assert made.service.state.rounds.server.round_index == 1
