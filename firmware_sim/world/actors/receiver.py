"""The receiver of a simulated world's webhook: it takes notices of alarms, or fails, or takes them and says nothing."""

from __future__ import annotations

from functools import partial

from fedgate.cloud_aggregator.events import Post, Posted
from fedgate.firmware_sim.world.actors.machines import Machine
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.setup import stream_of

TAKES_S = (0.05, 2.0)  # for a notice to come there, and for the answer to come back
UNHEARD = 0.5  # share of the failures in which it took the notice, and its answer was lost


class Receiver:
    """Somebody who is told of alarms."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, stream_of(world.seed, "receiver")

    def send(self, sender: Machine, post: Post) -> None:
        """Let a notice travel; it comes there also where its sender is gone meanwhile, and the answer does not."""
        there_s, back_s = self._rng.uniform(*TAKES_S, size=2).tolist()
        is_failing, is_unheard = self._rng.random(2) < (self._world.network.faults.alarms.receiver_fails, UNHEARD)
        if not is_failing or is_unheard:
            self._world.scheduler.after(there_s, partial(self._world.witness.log.notices.took, post))
        result = Posted(post.id, "HTTP 503" if is_failing else "", channel=post.channel)
        sender.during_process(there_s + back_s, partial(sender.step, result))
