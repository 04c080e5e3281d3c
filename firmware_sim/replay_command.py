"""`firmware-sim replay`: a sensor node that plays a recording to a gateway."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from config.settings import Broker, GatewaySettings, load
from firmware_sim import reading
from firmware_sim.recordings import Recording

NS = 1_000_000_000
SITE = "bridge"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "Be a sensor node: publish a recording to a gateway over MQTT, in fedgate's sample frames."
    replay = commands.add_parser("replay", help="play a recording to a gateway", description=text)
    who = replay.add_mutually_exclusive_group(required=True)
    who.add_argument("--gateway", help="id of the gateway that listens")
    text = "gateway.toml of the gateway that listens: id, site, and the broker of its sensors with certificate and user"
    who.add_argument("--gateway-config", type=Path, metavar="FILE", help=text)
    replay.add_argument("--site", help="its site, with --gateway (default: bridge)")
    replay.add_argument("--stream", default="deck", help="name of the gateway's source (default: deck)")
    replay.add_argument(
        "--broker", type=_address, metavar="HOST:PORT", help="with --gateway; no certificates (default: 127.0.0.1:1883)"
    )
    replay.add_argument("--speed", type=positive, default=1.0, help="times real time (default: 1)")
    replay.add_argument("--channels", metavar="NAME,NAME", help="which channels, in which order (default: all)")
    replay.add_argument("--start", type=float, default=0.0, metavar="S", help="from this second (default: 0)")
    replay.add_argument("--end", type=float, metavar="S", help="to this second (default: the end)")
    replay.add_argument("--frame", type=positive, metavar="S", help="seconds a frame (default: 1, or one sample)")
    replay.add_argument(
        "--t0", default="now", metavar="now|recorded|SECONDS", help="time of the recording's first sample"
    )
    replay.add_argument("-q", "--quiet", action="store_true", help="no progress")
    replay.add_argument("--json", action="store_true", help="print what was sent as JSON")
    reading.add_arguments(replay)
    replay.set_defaults(act=_replay)


def positive(text: str) -> float:
    """Return a number above 0; raises `argparse.ArgumentTypeError`."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _address(text: str) -> Broker:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, got {text!r}")
    return Broker(host=host, port=int(port))


def _listener(arguments: argparse.Namespace) -> tuple[Broker, str, str]:
    """Return whom to play to: the broker, the site and the gateway."""
    if arguments.gateway_config is None:
        return arguments.broker or Broker(), arguments.site or SITE, arguments.gateway
    for name in ("broker", "site"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name}: {arguments.gateway_config} says it; leave it out, or give --gateway instead")
    settings = load(arguments.gateway_config, GatewaySettings)
    broker = settings.sensors.broker or settings.broker
    user = broker.user or settings.gateway.id  # a node logs in as the gateway that it belongs to
    return broker.model_copy(update={"user": user}), settings.gateway.site, settings.gateway.id


def _replay(arguments: argparse.Namespace) -> int:
    from firmware_sim.node import replay

    recording = reading.recording_of(arguments)
    if arguments.channels:
        recording = recording.select(arguments.channels.split(","))
    t0_ns = _t0_ns(arguments.t0, recording) + round(arguments.start * NS)
    end_s = recording.length_s if arguments.end is None else min(arguments.end, recording.length_s)
    recording = recording.cut(arguments.start, end_s)
    broker, site, gateway = _listener(arguments)
    count = replay(
        recording,
        broker,
        site=site,
        gateway=gateway,
        stream=arguments.stream,
        speed=arguments.speed,
        frame_s=arguments.frame or max(1.0, 1.0 / recording.rate_hz),
        t0_ns=t0_ns,
        progress=not arguments.quiet,
    )
    if arguments.json:
        print(json.dumps({"frames": count, "seconds": recording.length_s, "channels": list(recording.channel_names)}))
    elif not arguments.quiet:
        print(f"{count} frames, {recording.length_s:.0f} s of {', '.join(recording.channel_names)}, all acknowledged")
    return 0


def _t0_ns(text: str, recording: Recording) -> int:
    if text == "now":
        return time.time_ns()
    if text == "recorded":
        if recording.t0_ns is None:
            raise ValueError("--t0 recorded: the recording does not say when it began; use now or Unix seconds")
        return recording.t0_ns
    try:
        return round(float(text) * NS)
    except ValueError:
        raise ValueError(f"--t0 {text}: expected now, recorded or Unix seconds") from None
