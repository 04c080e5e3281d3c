"""`cloud-aggregator doctor`: what works at the aggregator, what does not, and what to do."""

from __future__ import annotations

import argparse
import re
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.commands.store import open_store
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.quarantine import list_denied_names
from fedgate.cloud_aggregator.runtime import notify_client, webhook_client
from fedgate.config.doctor import broker, report, service
from fedgate.config.doctor.imports import check_imports
from fedgate.config.doctor.report import Finding, failure, fit_line, guard, ok, warning
from fedgate.config.identity import signing
from fedgate.config.identity.pki import IdentityError
from fedgate.config.protocol.topics import CLOUD
from fedgate.config.runtime import cli
from fedgate.config.settings.base import is_loopback
from fedgate.config.settings.checks import check_budget
from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.settings.identity import Identity
from fedgate.config.settings.notifications import NotifyChannel, Webhook
from fedgate.config.settings.settings import AggregatorSettings, Limits, SettingsError, load
from fedgate.models.arrays import generator
from fedgate.models.time_units import DAY_NS

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.events import SaveTraining
    from fedgate.cloud_aggregator.storage.store import BackupNote
    from fedgate.models.federated.protocol.algorithm import Algorithm, Server

NAME = "cloud-aggregator"
LIBRARIES = ("numpy", "pydantic", "cryptography", "scipy", "sklearn", "onnx", "sqlalchemy", "starlette", "uvicorn")
MODELS_KEPT = 50  # for which there should be room
REACH_S = 3.0
BACKUP_DAYS = 8  # one a week that is a day late
LEFT_S = 12.0  # for what comes after the libraries
MEMORY = Path("/proc/meminfo")
MIB = 1024 * 1024
BROKER_FILE = "mosquitto.conf"  # where 'cloud-aggregator init' put it


def add(commands: cli.Commands) -> None:
    """Add the command."""
    report.command(commands, NAME, examine)


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yield what is found; ends early where nothing further can be looked at."""

    try:
        settings = load(arguments.config, AggregatorSettings)
    except SettingsError as error:
        yield from report.fail_each(
            "settings", error, "correct it there; cloud-aggregator check looks at the file alone"
        )
        return
    yield ok("settings", f"{settings.algorithm.name} for site {settings.aggregator.site}")
    until_s, works = time.monotonic() + report.WITHIN_S, True
    for finding in check_imports(LIBRARIES, {}, until_s - LEFT_S):
        works &= finding.level != "failure"
        yield finding
    stored = read_stored(settings.aggregator.store)
    yield from _machine(arguments.config, settings)
    yield from _check_keys(settings, stored)
    if works:
        yield from _check_training(settings, stored)
        yield from _store(settings.aggregator.store)
    if settings.webhook is not None:
        yield from _check_webhook(settings.webhook)
    if settings.notify:
        yield _check_channels(settings.notify)
    yield from _broker(settings, until_s)
    yield from broker_file(arguments.config.parent / BROKER_FILE, settings.limits.max_payload_bytes)


class Stored(NamedTuple):
    """Who belongs to the site and who has ever spoken; nobody where there is no store that can be read."""

    registry: Registry
    speakers: frozenset[str]
    training: SaveTraining | None = None


def read_stored(store: Path | DatabaseUrl) -> Stored:
    """Return what a store knows of gateways; that it cannot be read is a finding of its own."""
    from fedgate.cloud_aggregator.storage.store import StoreError

    try:
        with open_store(store) as opened:
            speakers = frozenset(row["gateway"] for row in opened.read_rows("gateways", "gateway"))
            return Stored(opened.read_registry(), speakers, opened.read_training())
    except StoreError:
        return Stored(Registry(), frozenset())


def _machine(file: Path, settings: AggregatorSettings) -> Iterator[Finding]:

    broker, webhook, identity = settings.broker, settings.webhook, settings.identity
    secrets = (
        settings.aggregator.release_key,
        broker.key_file,
        broker.password_file,
        None if identity is None else file.parent / identity.folder / "ca.key",
        None if webhook is None else webhook.secret_file,
        *(channel.url_file for channel in settings.notify),
    )
    place = settings.aggregator.store
    store = place if isinstance(place, Path) else None
    yield from service.machine(file, store, MODELS_KEPT * settings.limits.max_model_bytes, secrets)


def _check_keys(settings: AggregatorSettings, stored: Stored) -> Iterator[Finding]:

    identity = settings.identity

    def check_key() -> str:
        site_keys.release_key(settings.aggregator, identity.folder if identity else None)
        return f"{settings.aggregator.release_key} can sign"

    advice = "cloud-aggregator init makes one; restore it from a backup where gateways trust it already"
    yield guard("release key", (signing.KeyFileError,), advice, check_key)
    if identity is not None:
        yield root_key(identity)
        yield from list_denied(identity, stored.registry)


def root_key(spec: Identity) -> Finding:
    """Return whether the root key is not here, where whoever takes this machine would have it."""
    if spec.root_key is not None and spec.root_key.exists():
        advice = "move it to a place that is not this machine, with a copy; 'cloud-aggregator keys' alone needs it"
        return warning("root key", f"{spec.root_key} is on this machine", advice)
    return ok("root key", "not on this machine" if spec.root_key is None else f"not on this machine at {spec.root_key}")


def list_denied(spec: Identity, registry: Registry) -> Iterator[Finding]:
    """Yield who is denied at the broker until that is restarted, if anybody is."""

    try:
        names = list_denied_names(spec, registry)
    except IdentityError as error:
        yield failure("broker", fit_line(error), "as it says")
        return
    if names:
        text = f"denied until it is restarted, as another device may still be connected: {', '.join(sorted(names))}"
        yield warning("broker", text, "restart the broker: systemctl restart fedgate-broker")


def _check_training(settings: AggregatorSettings, stored: Stored) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.rounds.compression import describe_updates, settle_compression
    from fedgate.cloud_aggregator.runtime import defence

    name = "training"
    try:
        settings = settle_compression(settings)
        algorithm = defence.build_algorithm(settings, defence.read(settings))
        check_budget(settings.algorithm, settings.rounds, settings.features)
    except (ValueError, OSError) as error:  # of a table of the defence, or what an algorithm says of its settings
        yield failure(name, fit_line(error), "correct [algorithm], [defence] or the files it names")
        return
    yield ok(name, f"{settings.algorithm.name}, defence {settings.defence.kind}; {describe_updates(settings)}")
    yield _check_memory(settings, algorithm, max(len(stored.speakers), 1))
    if settings.algorithm.settings.get("masking") is not None:
        yield cohort(settings, stored, _read_members(settings))


def _check_memory(settings: AggregatorSettings, algorithm: Algorithm, gateways: int) -> Finding:

    server = algorithm.start(generator(settings.algorithm.seed, 0, "cloud"))
    state = sum(array.nbytes for arrays in (server.global_state, server.server_state) for array in arrays.values())
    bounded = all(phase.reducer.additive for phase in algorithm.phases)
    update = find_largest_update(algorithm, server, settings.limits)
    # The state, the sum and both as bytes; and what is on its way: of each gateway one update, whole at the end.
    needed = 4 * state + (1 if bounded else gateways) * update + gateways * update
    free = _read_available_bytes()
    each = "" if bounded else ", and its updates are kept until the round closes"
    text = f"up to {needed // MIB} MiB with {gateways} gateways sending at once{each}; {free // MIB} MiB are free"
    if free and needed > free:
        advice = "a smaller limits.max_update_bytes, rounds.fraction, or more memory"
        return warning("training memory", text, advice)
    return ok("training memory", text)


def find_largest_update(algorithm: Algorithm, server: Server, limits: Limits) -> int:
    """Return the most bytes of an update: those of the schemas, and never more than is taken."""
    from fedgate.config.protocol.wire import HEADER_BYTES_MAX
    from fedgate.models.federated.protocol.schema import largest_body

    bodies = [largest_body(phase.schema, server.global_state) for phase in algorithm.phases]
    known = [limits.max_update_bytes if body is None else HEADER_BYTES_MAX + body for body in bodies]
    return min(max(known), limits.max_update_bytes)


def cohort(settings: AggregatorSettings, stored: Stored, members: Collection[str]) -> Finding:
    """Say whether enough gateways are enrolled, or have ever spoken where nobody is enrolled, for a masked sum; and
    enough of the members that the root key names, if it names any.
    """
    from fedgate.models.federated.secure_aggregation.options import Masking

    fewest = Masking.model_validate(settings.algorithm.settings["masking"]).fewest
    names = stored.registry.admitted or stored.speakers
    enrolled = f"{len(names)} gateways are enrolled"
    if members:
        names = frozenset(name for key, name in stored.registry.members.items() if key in members)
        enrolled += f", {len(names)} of them members that the root key names"
    text = f"{enrolled}, and a masked sum is opened only if {fewest} have something new"
    if len(names) >= fewest:
        return ok("masking", text)
    return warning("masking", text, "enrol more gateways, have 'keys members' name them, or set masking.fewest to 3")


def _read_members(settings: AggregatorSettings) -> tuple[str, ...]:
    """Return who may take part in masked sums; empty where anybody may, or where the statement cannot be read, which is
    a finding of its own.
    """

    try:
        return () if settings.identity is None else site_keys.read_statement(settings.identity.folder).members
    except signing.KeyFileError:
        return ()


def _read_available_bytes() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _store(place: Path | DatabaseUrl) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.backup.facts import describe_facts, read_facts
    from fedgate.cloud_aggregator.storage.store import BackupNote, StoreError, choose_database

    database, notes = choose_database(place), list[BackupNote | None]()

    def check() -> str:
        if not database.exists():
            return f"{database.name} is made when the aggregator starts"
        with open_store(place) as store, database.open_snapshot() as db:
            notes.append(store.read_backup_note())
            return f"{database.name} is whole: {describe_facts(read_facts(db))}"

    advice = "where it is damaged, stop the service and restore store and release key from one backup"
    yield guard("store", (StoreError,), advice, check)
    if notes:
        yield last_backup(notes[0], time.time_ns())


def last_backup(held: BackupNote | None, now_ns: int) -> Finding:
    """Return how old the last backup of a store is."""
    advice = "cloud-aggregator backup FILE, once a day: docs/reference/operations.md, Back up"
    if held is None:
        return warning("backup", "none was made of this store, or nobody knows of it", advice)
    keys = "with the keys" if held.has_keys else "without the keys, which are kept apart"
    text = f"of {cli.format_time(held.made_ns)}, {keys}: {held.file}"
    if held.made_ns > now_ns:
        return warning("backup", f"{text}; that is to come", "set the clock")
    days = (now_ns - held.made_ns) / DAY_NS
    return warning("backup", f"{days:.0f} days old, {text}", advice) if days > BACKUP_DAYS else ok("backup", text)


def _check_webhook(spec: Webhook) -> Iterator[Finding]:

    def check_reached() -> str:
        webhook_client.check(spec)
        port = spec.parts.port or (443 if spec.parts.scheme == "https" else 80)
        with socket.create_connection((spec.parts.hostname or "", port), timeout=REACH_S):
            return f"{spec.parts.hostname}:{port} takes connections (nothing was posted)"

    yield guard("webhook", (OSError, SettingsError), "alarms wait in the queue; check webhook.url", check_reached)


def _check_channels(specs: Sequence[NotifyChannel]) -> Finding:

    def check() -> str:
        services = notify_client.check(specs)
        named = "; ".join(f"{spec.name}: {found}" for spec, found in zip(specs, services, strict=True))
        return f"{named} (nothing was sent; cloud-aggregator notify test does that)"

    advice = "correct the file or variable that it names, or install fedgate's extra notify"
    return guard("notify", (OSError, SettingsError, ModuleNotFoundError), advice, check)


def _broker(settings: AggregatorSettings, until_s: float) -> Iterator[Finding]:

    site = settings.aggregator.site
    user = settings.broker.user or f"{CLOUD}.{site}"
    trial = broker.try_aggregator(settings.broker, user, site, settings.limits.max_payload_bytes)
    yield from service.check_way_to_broker(trial, user, "cloud-aggregator init FOLDER --renew-server", until_s)


def broker_file(path: Path, largest_bytes: int) -> Iterator[Finding]:
    """Yield what a broker's configuration beside the settings says, for what no client can see."""
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield warning("broker file", fit_line(error), "let this user read it")
        return
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    found = {one[0]: " ".join(one[1:]) for one in words}
    listeners = [one[-1] for one in words if one[0] == "listener"]  # without one the broker listens everywhere
    is_here_alone = bool(listeners) and "port" not in found and all(map(is_loopback, listeners))
    name = path.name
    if 0 < int(found.get("max_packet_size", "0")) < largest_bytes + 1_024:
        text = f"{name}: max_packet_size {found['max_packet_size']} is too small for {largest_bytes} and its topic"
        yield failure("broker file", text, "raise it")
    elif is_here_alone and found.get("persistence", "false") != "true":  # what `init --loopback` writes
        yield ok("broker file", f"{name}: for this machine alone; what the broker holds is gone when it restarts")
    elif found.get("persistence", "false") != "true":
        text = f"{name}: what the broker holds for others is gone when it restarts"
        yield warning("broker file", text, "persistence true")
    elif found.get("allow_anonymous") == "true" and not is_here_alone:
        yield warning("broker file", f"{name} lets anybody in", "allow_anonymous false")
    else:
        yield ok("broker file", f"{name}: sessions and retained messages survive a restart of the broker")
