"""What the machine does about a store in trouble: the gateway goes on watching, gives up the least important, and says
so.
"""

from __future__ import annotations

from typing import Final

from fedgate.gateway_agent import store_identity
from fedgate.gateway_agent.deployment import slots
from fedgate.gateway_agent.events import Effect, Save, StoreState
from fedgate.gateway_agent.monitor import alarms
from fedgate.gateway_agent.outbox import eviction
from fedgate.gateway_agent.state import SECRET, State, Stored, save_alarms, save_features, save_memory, tell
from fedgate.gateway_agent.training.training import save_counted, save_invited, save_ledger, save_own
from fedgate.gateway_agent.trust import newest
from fedgate.models.records import replace

FULL: Final = "disk-full"
DAMAGED: Final = "store-damaged"  # causes of sensor alarms, which the next start ends


def of_store(state: State, event: StoreState) -> tuple[State, list[Effect]]:
    """Take in what the service says of the store."""
    if event.problem == DAMAGED:  # a thing of the past as soon as it is told: the store is a new one
        # Another damage while one is still told of is an alarm of its own.
        state, ended = alarms.sensor_well(state, DAMAGED, state.context.now_ns)
        state, raised = alarms.sensor(state, DAMAGED, event.text, state.context.now_ns)
        return state, [*ended, *raised]
    state = replace(state, context=replace(state.context, store=replace(state.context.store, problem=event.problem)))
    if event.problem == FULL:
        outbox, given_up = eviction.give_up_telemetry(state.outbox, state.context)
        state = replace(state, outbox=outbox)
        state, raised = alarms.sensor(state, FULL, event.text, state.context.now_ns)
        state, told = tell(state)
        return state, [*given_up, *raised, *told]
    state, cleared = alarms.sensor_well(state, FULL, state.context.now_ns)
    state, told = tell(state)
    return state, [*cleared, *told]


def in_mind(state: State) -> Stored:
    """Return what a store would hold of what the agent knows: for a new one, where the old one cannot be read."""
    saved = [
        save_own(state.training),
        *save_ledger(state.training),
        save_invited(state.training),
        save_counted(state.training),
        save_features(state),
        save_alarms(state),
        *save_memory(state),
    ]
    saved += [
        *store_identity.save(state.context.starts, state.outbox.sequence),
        slots.save(state.deployment.models),
        *newest.save(state),
    ]
    blobs = {effect.key: effect.body for effect in saved if isinstance(effect, Save)}
    return Stored(
        tuple(state.monitor.pipeline.baseline), {**blobs, SECRET: state.context.secret}, dict(state.outbox.items)
    )
