"""What other systems do about alarms over MQTT: who may, how often, and that each request is carried out once.

An action comes under `cloud/action/<user>`, where the broker lets that user alone speak, and becomes an order in the
store, as an operator's command does; its answer goes out under `cloud/answer/<user>` after what it changed was stored.
A request that is known by its number, after a restart too, is answered again and changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator.alarms.records import Alarms, keep_request
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Answered, Effect, Publish, RecordAction
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.config.protocol.messages import NAME_MAX, ActionAnswer, AlarmAction, MessageError, escape_text
from fedgate.config.protocol.topics import CLOUD

ACTIONS, ACTION_S = 60, 1.0  # of a user that are taken as they come, and in which time one more is
Result = tuple[Alarms, list[Effect]]


def receive_action(
    alarms: Alarms, context: Context, user: str, payload: bytes, *, is_retained: bool, is_gateway: bool
) -> Result:
    """Take in an action. Raises `MessageError` where it is dropped without an answer: its sender may not act, sends too
    many, or had it retained.
    """
    if user not in context.settings.alarms.actions_from:
        raise MessageError(f"{user} may not act on alarms; [alarms] actions_from lists who may")
    if is_gateway:
        raise MessageError(f"{user} is a gateway, and no gateway acts on alarms; take it from [alarms] actions_from")
    if is_retained:
        raise MessageError("it is retained, and would come again with each connection; send it without retain")
    used = alarms.acted.get(user, Allowance()).compute_used(context.uptime_ns, ACTION_S)
    if used + 1 > ACTIONS:
        raise MessageError(f"{user} sends more than {ACTIONS} actions at once, and more than one in {ACTION_S:g} s")
    alarms = replace(alarms, acted={**alarms.acted, user: Allowance(used + 1, context.uptime_ns)})
    try:
        action = AlarmAction.from_bytes(payload)
    except MessageError as error:
        return alarms, [_publish(context, user, ActionAnswer(request=_find_request(payload), **_refuse(str(error))))]
    known = alarms.requests.get(user, {})
    if action.request in known:
        answer = known[action.request]
        return alarms, [] if answer is None else [_publish(context, user, answer)]
    body = action.model_dump(exclude_none=True) | {"who": user}
    alarms = replace(alarms, requests={**alarms.requests, user: keep_request(known, action.request, None)})
    return alarms, [RecordAction(user, body)]


def answer_action(alarms: Alarms, context: Context, user: str, request: str, done: Answered) -> Result:
    """Publish what became of an action, and keep it for when it is asked again."""
    answer = ActionAnswer(request=request, answer=done.text, problem=done.problem)
    requests = {**alarms.requests, user: keep_request(alarms.requests.get(user, {}), request, answer)}
    return replace(alarms, requests=requests), [_publish(context, user, answer)]


def _publish(context: Context, user: str, answer: ActionAnswer) -> Publish:
    return Publish(context.topic(CLOUD, "answer", user), answer.to_bytes())


def _refuse(problem: str) -> dict[str, str]:
    return {"answer": "refused", "problem": problem}


def _find_request(payload: bytes) -> str:
    """Return the number of a request that makes no sense, as far as it has one."""
    try:
        document: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    request = document.get("request") if isinstance(document, dict) else None
    return escape_text(request[:NAME_MAX]) if isinstance(request, str) else ""
