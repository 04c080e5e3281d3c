"""What an operator's commands ask of the running service.

A command writes an order into the store and waits for its answer; the service takes it at its next tick, or when it is
started. So a command needs no connection to the service and no second way in, and an order survives a restart: what it
changes and its answer are one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator.access import admission
from fedgate.cloud_aggregator.alarms import actions, maintenance, remote_actions
from fedgate.cloud_aggregator.enrolment import Revoke, Revoked, TakeKeys
from fedgate.cloud_aggregator.events import ACTION, Answered, Effect, Log, Ordered, OrderError, Wanted
from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.samples import fetches
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol.messages import NAME_MAX
from fedgate.config.protocol.topics import ALL

REASON_LENGTH = 200  # of a refusal in the log


def carry_out(state: State, order: Ordered) -> tuple[State, list[Wanted]]:
    """Carry out an order, or say why not."""
    if order.kind.startswith(ACTION):
        return _carry_out_action(state, order)
    try:
        state, wanted, text = _carry_out(state, order)
    except OrderError as error:
        return state, [Answered(order.number, "refused", str(error)), Log("warning", f"order refused: {error}")]
    if not any(isinstance(one, Revoke | TakeKeys) for one in wanted):
        return state, [Answered(order.number, text), *wanted, Log("info", text)]
    # It is done, and its answer waits for the broker: see `answer_order`.
    answered = [replace(one, order=order.number, answer=text) if isinstance(one, Revoke) else one for one in wanted]
    return state, [Answered(order.number, ""), *answered, Log("info", text)]


def _carry_out_action(state: State, order: Ordered) -> tuple[State, list[Wanted]]:
    """Carry out an action of another system, and log it in one line."""
    state, wanted = carry_out(state, replace(order, kind="alarm"))
    done = next(one for one in wanted if isinstance(one, Answered))
    what = f"{order.kind.removeprefix(ACTION)}: {order.body.get('action')} of {len(order.body.get('alarms') or [ALL])}"
    log = (
        Log("warning", f"{what} refused: {done.problem[:200]}") if done.problem else Log("info", f"{what} carried out")
    )
    return answer_sender(state, [*(one for one in wanted if not isinstance(one, Log)), log], order)


def _check_gateway(state: State, body: Mapping[str, Any]) -> None:
    """Raise `OrderError` where an action names a gateway that the site does not have: of each, the events are bounded.

    One that is gone is known while alarms of it are, or causes that it had are out of service.
    """
    gateway, registry = body.get("gateway", ALL), state.access.registry
    admitted = registry.admitted if registry is not None else frozenset[str]()
    out = {name for name, _ in state.alarms.workflow.out}
    known = admitted | out | state.access.gateways.keys() | state.alarms.book.keys()
    if gateway != ALL and not (isinstance(gateway, str) and gateway in known):
        there = list_first(sorted(known - {ALL})) or "none yet"
        raise OrderError(f"gateway: {str(gateway)[:NAME_MAX]!r} given; expected one of this site ({there}), or {ALL}")


def answer_sender(state: State, wanted: Sequence[Wanted], order: Ordered) -> tuple[State, list[Wanted]]:
    """Return what an order came to, with the answer for the other system that it is of, where it is of one."""
    if not order.kind.startswith(ACTION):
        return state, [*wanted]
    user, request = order.kind.removeprefix(ACTION), str(order.body["request"])
    (done,) = (one for one in wanted if isinstance(one, Answered))
    alarms, sent = remote_actions.answer_action(state.alarms, state.context, user, request, done)
    return replace(state, alarms=alarms), [*wanted, *sent]


def answer_order(barred: Revoked) -> list[Effect]:
    """Answer an order now that the broker was notified who is shut out, or could not be."""
    if not barred.problem:
        return [Answered(barred.order, barred.answer)]
    problem = f"{barred.answer}; but the broker does not know it yet: {barred.problem}"
    return [Answered(barred.order, barred.answer, problem)]


def _carry_out(state: State, order: Ordered) -> tuple[State, Sequence[Wanted], str]:
    context, access, body = state.context, state.access, order.body
    match order.kind:
        case "keys":
            return state, [TakeKeys(order.number)], "new keys of the site are looked at"
        case "release" | "go-on" | "pause" | "stop":
            act = deploy.release_ordered if order.kind == "release" else deploy.decide_release
            releases, effects, text = act(state.releases, context, access.gateways, order)
            return replace(state, releases=releases), effects, text
        case "alarm":
            _check_gateway(state, body)
            alarms, events, text = actions.carry_out(state.alarms, context, order)
            is_of_maintenance = alarms.workflow.changed_ns != state.alarms.workflow.changed_ns
            announced = maintenance.publish_windows(alarms.workflow, context) if is_of_maintenance else []
            return replace(state, alarms=alarms), [*events, *announced], text
        case "samples":
            asked, effects, text = fetches.carry_out(state.fetches, context, order)
            return replace(state, fetches=asked), effects, text
        case "token":
            access, wanted, text = admission.admit_token(access, context, body)
        case "certified":
            access, wanted, text = admission.note_certificate(access, context, body)
        case "revoke":
            access, wanted, text = admission.revoke_gateway(access, context, body)
        case "remove":
            access, wanted, text = admission.remove_gateway(access, context, state.alarms.book, body)
        case _:
            raise OrderError(f"{order.kind!r} given, which this version of the aggregator does not know; update it")
    return replace(state, access=access), wanted, text
