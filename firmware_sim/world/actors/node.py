"""The sensor nodes of a simulated world: each sends a recording to its gateway over a line of their own."""

from __future__ import annotations

from collections.abc import Iterator

from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.replay.node import frames
from fedgate.firmware_sim.world.actors.hosts import GatewayHost
from fedgate.firmware_sim.world.environment.faults import Faults
from fedgate.firmware_sim.world.environment.setup import FRAME_S, SITE, STREAM, gateway_of, stream_of
from fedgate.firmware_sim.world.environment.time import T0_NS

WITH_CLOCK = 0.7  # share of the nodes; the others count from their start
AWAKE_S = 1_800.0  # in which it is heard, after the last fault: who waits for longer than that waits for no sensor


class Node:
    """A sensor node that falls silent now and then, and comes back as one that was started anew."""

    def __init__(self, host: GatewayHost, recording: Recording, phase_s: float) -> None:
        self._host, self._recording, self._phase_s = host, recording, phase_s
        self._rng = stream_of(host.world.seed, f"node of {host.name}")
        self._topic = topic_of(Topic(SITE, host.settings.gateway.id, "sample", STREAM))
        self._is_on = True
        self._unreceived_s = 0.0  # when it, or its gateway, was last off
        self._runs = 0
        self._has_clock = bool(self._rng.random() < WITH_CLOCK)

    @property
    def _faults(self) -> Faults:
        """What may go wrong now."""
        return self._host.world.network.faults

    def start(self) -> None:
        """Begin to send what is measured from now on."""
        from_s = self._host.world.scheduler.elapsed_s - self._phase_s
        measured = frames(self._recording, FRAME_S, T0_NS, "node")
        self._send_next((due_s, frame) for due_s, frame in measured if due_s >= from_s)
        self._host.world.scheduler.again(self._rng, self._faults.work.silence, self._fall_silent)

    def _send_next(self, rest: Iterator[tuple[float, Frame]]) -> None:
        scheduler, calm_s = self._host.world.scheduler, self._host.world.scheduler.calm_s
        due = next(rest, None)
        is_over = calm_s is not None and scheduler.elapsed_s > max(calm_s, self._unreceived_s) + AWAKE_S
        if due is None or is_over or self._host.is_retired:
            return
        due_s, frame = due

        def send() -> None:
            self._send(due_s, frame)
            self._send_next(rest)

        scheduler.after(due_s + self._phase_s - scheduler.elapsed_s, send)

    def _send(self, due_s: float, frame: Frame) -> None:
        """Hand a frame to the gateway, as far as the line does, and let the witness know."""
        witness, name = self._host.world.witness, self._host.name
        under = self._host.under if self._is_received(frame) else None
        is_handled = bool(witness.devices.handled[gateway_of(name)])
        witness.damages.note_frame(name, due_s, under, self._host.reaches, is_handled=is_handled)

    def _is_received(self, frame: Frame) -> bool:
        lost, repeated = self._rng.random(2)
        chances = self._faults.messages
        if not self._is_on or not self._host.is_up:
            self._unreceived_s = self._host.world.scheduler.elapsed_s
            return False
        if lost < chances.frame_loss:
            return False
        meta = frame.meta.model_copy(update={"boot": f"node-{self._runs}"})
        if not self._has_clock:
            meta = meta.model_copy(update={"clock": "boot", "t_ns": meta.t_ns - T0_NS})
        payload = Frame(meta, frame.values).to_bytes()
        for _ in range(2 if repeated < chances.frame_repeat else 1):
            self._host.receive(self._topic, payload)
        return True

    def _fall_silent(self) -> None:
        if self._is_on:
            self._is_on = False
            self._host.world.scheduler.after(float(self._rng.exponential(self._faults.work.silence_s)), self._speak)

    def _speak(self) -> None:
        self._is_on, self._runs = True, self._runs + 1
