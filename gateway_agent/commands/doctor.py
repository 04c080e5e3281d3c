"""`gateway-agent doctor`: what works on this gateway, what does not, and what to do, before and after installation.

Libraries are tried first and in processes of their own: where one ends its process, no settings can be read either,
and this command must still be there to say so. So nothing heavy is imported before that.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedgate.config.doctor import report
from fedgate.config.doctor.imports import check_imports
from fedgate.config.doctor.report import Finding, failure, fit_line, guard, ok, warning
from fedgate.config.runtime import cli, store_lock
from fedgate.gateway_agent.storage.reading import open_store
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from fedgate.config.settings.settings import GatewaySettings
    from fedgate.gateway_agent.state import Stored

NAME = "gateway-agent"
BASE = ("numpy", "onnxruntime", "pydantic", "cryptography")
TRAINING = ("scipy", "sklearn")
OPTIONAL = {"torch": "this gateway takes no part in recurrent-fedavg"}
MODEL_BYTES = 4  # times the largest model: in force, before it, candidate, and on its way
SHARE_MAX = 0.5  # of one core
MEASURE_S = 1.5
BLOCKS_MAX = 400
LEFT_S = 12.0  # for what comes after the libraries
RUNS, SCORE_S = 200, 8.0
ENROL = "gateway-agent enrol, with a token of the operator"


def add(commands: cli.Commands) -> None:
    """Add the command."""
    report.command(commands, NAME, examine)


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yield what is found, the libraries first; ends early where nothing further can be looked at."""
    until_s, works = time.monotonic() + report.WITHIN_S, True
    for finding in check_imports(BASE, {}, until_s - LEFT_S):
        works &= finding.level != "failure"
        yield finding
    if not works:
        yield failure("settings", "not read: that needs the libraries above", "mend them first")
        return
    from fedgate.config.settings.settings import GatewaySettings, SettingsError, load

    try:
        settings = load(arguments.config, GatewaySettings)
    except SettingsError as error:
        yield from report.fail_each("settings", error, "correct it there; gateway-agent check looks at the file alone")
        return
    yield ok("settings", f"gateway {settings.gateway.id} of site {settings.gateway.site}")
    yield from _machine(arguments.config, settings)
    stored = _check_store(settings)
    yield from store(settings)
    yield from _check_page(settings)
    if settings.training.enabled:
        yield from check_imports(TRAINING, OPTIONAL, until_s - LEFT_S)
    yield measure_throughput(settings, stored)
    yield from _check_brokers(settings, until_s)


def _machine(file: Path, settings: GatewaySettings) -> Iterator[Finding]:
    from fedgate.config.doctor import service
    from fedgate.config.settings import labelled
    from fedgate.config.settings.labelled import LabelledError
    from fedgate.gateway_agent.runtime import signature_worker

    needed_bytes = settings.store.max_bytes + MODEL_BYTES * settings.limits.max_model_bytes
    secrets = (settings.broker.key_file, settings.broker.password_file)
    yield from service.machine(file, settings.gateway.store, needed_bytes, secrets)

    def check_trusted() -> str:
        signature_worker.check(settings.trust.release_key)
        return f"{settings.trust.release_key} is the key of a site"

    advice = "copy release.pub from the aggregator"
    yield guard("release key", (signature_worker.ReleaseKeyError, OSError), advice, check_trusted)
    if settings.training.labelled is not None:

        def table() -> str:
            return f"{len(labelled.read_labelled(settings)['labels'])} windows of known condition"

        yield guard("labelled windows", (LabelledError,), "make the table again: firmware-sim label", table)


def store(settings: GatewaySettings) -> Iterator[Finding]:
    """Yield whether the store opens, and whose it is."""
    from fedgate.config.runtime.sqlite import StoreError

    path = settings.gateway.store
    if not path.exists():
        yield ok("store", f"{path} is made when the agent starts")
        return

    def check_opened() -> str:
        running = "" if store_lock.find_holder(path) is None else " of a running agent"
        with open_store(settings) as reader:
            held = reader.summarise(reader.look())
        windows = f"{held['baseline_windows']} of {settings.baseline.windows} windows of the baseline"
        return f"{path}{running}: {windows}, {len(held['outbox'])} items wait to be sent"

    advice = "the agent sets a damaged store aside when it starts, see docs/reference/operations.md"
    yield guard("store", (StoreError, OSError, ValueError), advice, check_opened)
    if not os.access(path, os.W_OK):
        yield failure("store access", f"{path} cannot be written by this user", "run this as the user of the service")


def _check_store(settings: GatewaySettings) -> Stored | None:
    try:
        with open_store(settings) as store:
            return store.read()
    except OSError:  # there is none yet, or it cannot be read, which is a finding of its own
        return None


def _check_page(settings: GatewaySettings) -> Iterator[Finding]:
    from fedgate.gateway_agent.commands import page_check

    return page_check.check_page(settings)


def measure_throughput(settings: GatewaySettings, stored: Stored | None) -> Finding:
    """Return which share of one core windows, features and score take at the rate of the settings."""
    score_s, note = _score_cpu_s(settings, stored)
    return judge_speed(_window_cpu_s(settings) + score_s, 1.0 / settings.features.hop_s, note)


def judge_speed(cpu_s: float, per_s: float, note: str) -> Finding:
    """Return what so much CPU time a window means at so many windows a second."""
    name, share = "throughput", cpu_s * per_s
    text = f"{cpu_s * 1e3:.2f} ms a window{note}, {per_s:g} windows/s: {share:.1%} of one core"
    if share > 1.0:
        return failure(name, text, "this machine cannot keep up: a longer hop_s, a lower rate_hz, fewer steps")
    if share > SHARE_MAX:
        return warning(name, text, "little is left for training and the rest: a longer hop_s or a lower rate_hz")
    return ok(name, text)


def _window_cpu_s(settings: GatewaySettings) -> float:
    """Return the CPU time from samples to features of one window, measured on noise at the rate of the settings."""
    import numpy as np

    from fedgate.gateway_agent.pipeline import pipeline as walk
    from fedgate.models.windows.grid import Block

    spec, rng = settings.features, np.random.default_rng(0)
    pipeline = walk.start(spec, settings.streams, settings.alarm, settings.baseline.windows)
    length, begin_ns, windows, spent_s = spec.hop_samples, 1_800_000_000 * NS, 0, 0.0
    until_s = time.monotonic() + MEASURE_S
    for number in range(BLOCKS_MAX):
        t_ns = begin_ns + round(number * length / spec.rate_hz * NS)
        blocks = [
            Block(stream.name, t_ns, spec.rate_hz, rng.normal(size=(length, len(stream.channels))))
            for stream in settings.streams
        ]
        before_s, found = time.process_time(), 0
        for block in blocks:
            pipeline, readings = walk.push(pipeline, block)
            found += len(readings)
        if windows or not found:  # what comes before the second window warms up
            spent_s += time.process_time() - before_s if windows else 0.0
        windows += found
        if windows > 2 and time.monotonic() > until_s:
            break
    return spent_s / max(windows - 1, 1)


def _score_cpu_s(settings: GatewaySettings, stored: Stored | None) -> tuple[float, str]:
    """Return the CPU time of one score of the model in force, in a process like that which tries a new one, and what to
    say of it.
    """
    import numpy as np

    from fedgate.gateway_agent.deployment.deployment import UNREADABLE, Examination, UntriedError, find_in_force, read
    from fedgate.gateway_agent.runtime import model_trial
    from fedgate.models import onnx_policy
    from fedgate.models.features.spec import feature_names
    from fedgate.models.onnx_policy import ModelRefusedError

    blob = None if stored is None else find_in_force(stored.blobs)
    if blob is None:
        return 0.0, " without a model, as none is in force"
    try:
        _, body, personal = read(blob)
        onnx_policy.check(body)
        rows = np.zeros((RUNS, len(feature_names(settings.features))), dtype=np.float32)
        asked = Examination(body, personal, rows[:1], rows[:1], np.zeros(1, dtype=np.int64), rows)
        found = model_trial.examine(asked, within_s=SCORE_S)
    except (*UNREADABLE, ModelRefusedError, UntriedError) as error:
        return 0.0, f" without the stored model ({fit_line(error)})"
    without = f", in all but {found.lacks}" if found.lacks else ""
    return found.window_s, f" (the model in a process of its own, without files and network{without})"


def _check_brokers(settings: GatewaySettings, until_s: float) -> Iterator[Finding]:
    from fedgate.config.doctor import broker, network, service

    name = settings.gateway.id
    trial = broker.try_gateway(settings.broker, settings.gateway.site, name, settings.limits.max_payload_bytes)
    trial = replace(trial, why_mute=lambda: _notice(settings))
    yield from _describe_members(settings)
    yield from service.check_way_to_broker(trial, name, ENROL, until_s)
    if settings.sensors.broker is not None:
        found, _ = network.reach(settings.sensors.broker)
        yield from (replace(one, name=one.name.replace("broker", "sensors'", 1)) for one in found)


def _notice(settings: GatewaySettings) -> str:
    """Return what the aggregator has to say of this gateway; empty where it cannot be asked."""
    if settings.identity is None:
        return ""
    from fedgate.config.identity.pki import IdentityError
    from fedgate.gateway_agent.runtime import enrolment
    from fedgate.gateway_agent.runtime.membership import find_files

    try:
        return enrolment.ask_for_notice(settings.gateway.id, settings.identity.enrolment, find_files(settings))
    except (enrolment.EnrolmentError, IdentityError, ValueError, OSError):  # each is a finding of its own
        return ""


def _describe_members(settings: GatewaySettings) -> Iterator[Finding]:
    """Say among whom this gateway takes part in masked sums, where it was enrolled."""
    if settings.identity is None or not settings.trust.keys.exists():
        return
    from fedgate.config.identity import signing, statement

    def list_members() -> str:
        root, body = signing.load_public(settings.trust.root_key), settings.trust.keys.read_bytes()
        keys = statement.check(body, root)
        if not keys.members:
            return "masked sums: with any gateway that the aggregator lets in, as the root key names nobody"
        return f"masked sums: among the {len(keys.members)} that statement {keys.number} of the root key names"

    errors = (statement.StatementError, signing.KeyFileError, OSError)
    yield guard("members", errors, ENROL, list_members)
