"""What all machines of a simulated world share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgate.firmware_sim.world.environment.network import Network
from fedgate.firmware_sim.world.environment.time import Scheduler
from fedgate.firmware_sim.world.promises.checks import Witness

if TYPE_CHECKING:
    from fedgate.firmware_sim.world.actors.door import Door
    from fedgate.firmware_sim.world.actors.receiver import Receiver

SET_ASIDE = re.compile(r"\.damaged-\w+-\d+")


@dataclass
class World:
    """What all machines share."""

    seed: int
    scheduler: Scheduler
    network: Network
    witness: Witness
    history: list[str]
    door: Door | None = None  # where gateways have certificates
    receiver: Receiver | None = None  # where somebody is told of alarms

    def note(self, who: str, text: str) -> None:
        """Add a line to the history, which is of this world: a file set aside bears the time of the real one."""
        text = SET_ASIDE.sub(".damaged", text)
        self.history.append(f"{self.scheduler.elapsed_s:11.3f} {who:7} {text}")
