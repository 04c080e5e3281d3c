"""What the model in force and its rules remember, as the store holds it: it outlives a stop, and no other model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fedgate.config.protocol.messages import Manifest
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Save
from fedgate.gateway_agent.pipeline.decision import DecisionState, dump_watching, restore_watching
from fedgate.gateway_agent.pipeline.pipeline import UNSEEN, Pipeline
from fedgate.gateway_agent.pipeline.recurrence import Memory, Owner, from_bytes, to_bytes

MEMORY = "memory"  # key of a stored blob


def save_memory(pipeline: Pipeline, context: Context, manifest: Manifest | None) -> list[Save]:
    """Return the effect that stores what the model in force and the rules remember, none where that is nothing."""
    remembers = pipeline.memory.tensors or pipeline.watching != UNSEEN
    if manifest is None or not pipeline.commissioned or not remembers:
        return []
    watching = dump_watching(pipeline.watching)
    return [Save(MEMORY, to_bytes(pipeline.memory, watching, find_owner(context, manifest)))]


def restore_memory(
    blobs: Mapping[str, bytes], context: Context, manifest: Manifest
) -> tuple[Memory, DecisionState | None]:
    """Return what a model remembers, and the rules, None where they remember nothing."""
    memory, watched = from_bytes(blobs.get(MEMORY), find_owner(context, manifest))
    return memory, restore_watching(watched) if watched else None


def find_owner(context: Context, manifest: Manifest) -> Owner:
    """Return whose memory that of a model is now."""
    rules = context.settings.alarm.model_dump_json(exclude={"evidence"}).encode()
    return Owner(manifest.model.digest, context.boot_id, context.clock, hashlib.sha256(rules).hexdigest())
