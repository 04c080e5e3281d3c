"""What changes with the keys that the site goes by: what those before could not vouch for may be taken now."""

from __future__ import annotations

import hashlib

from fedgate.config.protocol.messages import Keys
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import KeysChanged, Log, PublishStatus, Save, SetRefusal, Wanted, refuse
from fedgate.gateway_agent.trust.trust import NEWEST, SIGNER, Trust
from fedgate.models.records import replace

REFUSED = "keys of the site refused:"


def receive_statement(trust: Trust, context: Context, payload: bytes) -> tuple[Trust, list[Wanted]]:
    """Take in a statement of the site's keys; one that was refused is refused again without another look.

    With another release key no number that the one before signed is left: whoever had it may have signed the highest
    there are, and then nothing of the site would ever be new again. Nothing old can come back by that, for what that
    key signed is taken no more; and what counts is announced anew with the new one. Raises `MessageError`.
    """
    message = Keys.from_bytes(payload)  # so that no child is started for what is none
    name = hashlib.sha256(payload).hexdigest()
    if name == trust.refused_keys:
        return trust, []
    taken = trust.take_keys(payload)
    if taken.problem:
        return replace(trust, refused_keys=name), refuse(f"{REFUSED} {taken.problem}")
    effects: list[Wanted] = [SetRefusal("")] if context.refusal.startswith(REFUSED) else []
    signer = hashlib.sha256(message.release_key.encode()).hexdigest()
    is_other = signer != trust.signer and (taken.is_new or trust.signer != "")
    # The files may have them already: of a renewal, or of a start before the power was cut.
    if is_other:
        trust = replace(trust, newest=None)
        effects.append(Save(NEWEST, b""))
    if signer != trust.signer:
        trust = replace(trust, signer=signer)
        effects.append(Save(SIGNER, signer.encode()))
    if not (taken.is_new or is_other):
        return trust, effects
    text = "the site has changed its keys; they are taken"
    return trust, [*effects, KeysChanged(is_other), Log("info", text), PublishStatus()]
