"""The agent's machine with its store: how both start and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedgate.config.runtime import service
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.deployment.deployment import mark_at_start, save_at_stop
from fedgate.gateway_agent.events import Durable, Effect, Event, Log, Outward, Save, StoreState
from fedgate.gateway_agent.outbox import scores, summaries
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.memory import save_memory
from fedgate.gateway_agent.runtime.clip_file import ClipFile
from fedgate.gateway_agent.runtime.commit_policy import CommitPolicy
from fedgate.gateway_agent.samples import samples
from fedgate.gateway_agent.state import RESCUED, SECRET, Host, State, Stored, restore
from fedgate.gateway_agent.storage.store import Store


class Service(service.Service[State]):
    """An agent between its start and its end; use it from one thread."""

    def __init__(self, settings: GatewaySettings, store: Store, host: Host) -> None:
        """Go on with what the store holds; `first_effects` is what a start has to publish and log."""
        stored, secret = store.read(), host.random_bytes()  # drawn at every start, also where there is one
        first = [] if SECRET in stored.blobs else [Save(SECRET, secret)]
        if tried := mark_at_start(stored.blobs, host.boot_id, settings):  # on the disk before the model is loaded
            first.append(tried)
        stored.blobs.update((effect.key, effect.body) for effect in first)
        self.store, self.policy = store, CommitPolicy(settings.store, store, stored, host)
        self.clips = None if settings.samples is None else ClipFile(settings.gateway.store, settings.samples)
        commit = self.policy.commit if self.clips is None else partial(self._commit_and_keep, self.clips)
        super().__init__(restore(settings, stored, host), self.policy.step, commit)
        if first:
            self.policy.batch.add(first, host.uptime_ns)
            self.policy.write(self.state)  # on a full disk the start goes on without
        self.state = self.policy.note(self.state)
        self.first_effects = self._begin(stored, host.uptime_ns)

    def _commit_and_keep(
        self, clips: ClipFile, state: State, effects: Sequence[Effect], events: Sequence[Event]
    ) -> tuple[State, list[Outward], list[Event]]:
        """Commit as the policy says, and then keep and read clips: what fails of these is told, and stops nothing."""
        state, outward, news = self.policy.commit(state, effects, events)
        others, read = clips.carry_out(outward)
        self.policy.count_written(clips.take_written_bytes())
        return state, others, [*news, *read]

    def _begin(self, stored: Stored, uptime_ns: int) -> list[Outward]:
        """Return what a start has to tell."""
        self.state, effects = machine.begin(self.state, stored)
        if stored.blobs.get(RESCUED) and self.state.monitor.pipeline.commissioned:  # the baseline, again
            effects = [*effects, Save(RESCUED, b"")]
        outward = self.commit(uptime_ns, effects)
        if self.store.damage:
            outward += self.step(uptime_ns, StoreState(machine.DAMAGED, self.store.damage))
        if self.store.written_bytes is None:
            text = "this kernel does not say what a process writes, so [store] flash_bytes_per_day cannot be kept"
            outward.append(Log("warning", text))
        return outward

    def close(self) -> list[Log]:
        """Store what is kept in memory, and close the store; return what is to be said where a full disk did not take
        it.
        """
        uptime_ns = self.state.context.uptime_ns
        ended = self.commit(
            uptime_ns, samples.end_all(self.state.samples, self.state.context, "the agent was stopped")[1]
        )
        if self.clips is not None:
            self.clips.close()
        policy, pipeline = self.policy, self.state.monitor.pipeline
        outbox, summarised = summaries.queue_gathered(self.state.outbox, self.state.context)
        last = [
            *summarised,
            *scores.save_unsent(outbox, self.state.context),
            *([] if pipeline.commissioned else spectra.save(pipeline.healthy)[1]),
            *save_memory(pipeline, self.state.context, self.state.deployment.manifest),
            *save_at_stop(self.state.deployment),
            policy.save_flash(self.state),
        ]
        policy.batch.add((effect for effect in last if isinstance(effect, Durable)), uptime_ns)
        self.step_all(uptime_ns, policy.write(self.state))
        if policy.is_stuck:
            self.store.make_room()
            self.step_all(uptime_ns, policy.write(self.state))
        self.store.close()
        logs = [one for one in ended if isinstance(one, Log)]
        return [*logs, Log("warning", policy.batch.describe_lost())] if policy.is_stuck else logs
