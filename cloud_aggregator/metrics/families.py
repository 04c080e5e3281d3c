"""The metrics of a site, each with its name, its type, its labels and where its values come from.

`https://prometheus.io/docs/practices/naming` and `.../instrumentation` say how: base units, `_total` for what only
grows, a moment and no age. Labels are `site`, `gateway` and words of ours, never an id, a digest or what a gateway may
choose: each further value would be a series for ever. What is not known is left out, and so is a gateway that was
revoked or removed: its series end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Metric

from fedgate.cloud_aggregator.events import (
    ROUNDS_CLOSED,
    ROUNDS_GIVEN_UP,
    ROUNDS_OPEN_MS,
    UPDATES_ADMITTED,
    UPDATES_BYTES,
    UPDATES_REFUSED,
)
from fedgate.cloud_aggregator.health import GatewayState
from fedgate.cloud_aggregator.metrics.facts import FLEET, GatewayFacts, SiteFacts
from fedgate.cloud_aggregator.releases.releases import Stage
from fedgate.config.protocol.losses import LossClass
from fedgate.config.protocol.messages import Status, escape_text
from fedgate.models.time_units import NS

PREFIX = "fedgate_"
LABEL_MAX = 64  # characters of a label's value: as many as an id has
KINDS = ("anomaly", "sensor", FLEET)
GATEWAY_KINDS = ("anomaly", "sensor")
ACTIVE_STATES = ("unacknowledged", "acknowledged", "shelved", "suppressed", "out-of-service")
DROPPED = (*get_args(LossClass), "message", "damaged_body")  # what gateways count of; all else is `other`
OTHER = "other"

Value = float | None
Labelled = Iterable[tuple[tuple[str, ...], Value]]  # values of the labels but for the site, and the value


class Family(NamedTuple):
    """A metric: all of its samples, from what is known of a site."""

    name: str  # without the prefix, and as it is exported
    kind: Literal["gauge", "counter"]
    text: str
    labels: tuple[str, ...]  # besides the site
    read: Callable[[SiteFacts], Labelled]


def collect(site: SiteFacts) -> Iterator[Metric]:
    """Yield the families of a site that have samples."""
    for family in FAMILIES:
        made = _make(family)
        for labels, value in family.read(site):
            if value is not None:
                made.add_metric([_bound(label) for label in (site.site, *labels)], value)
        if made.samples:
            yield made


def _make(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    labels = ("site", *family.labels)
    if family.kind == "counter":
        return CounterMetricFamily(f"{PREFIX}{family.name}", family.text, labels=labels)
    return GaugeMetricFamily(f"{PREFIX}{family.name}", family.text, labels=labels)


@lru_cache(maxsize=4_096)
def _bound(label: str) -> str:
    """Return a label's value as far as it may be shown; the same few thousand come again and again."""
    return escape_text(label)[:LABEL_MAX]


def _in_seconds(t_ns: int | None) -> Value:
    return None if t_ns is None else t_ns / NS


def _of_site(read: Callable[[SiteFacts], Value]) -> Callable[[SiteFacts], Labelled]:
    return lambda site: [((), read(site))]


def _by_word(words: Iterable[str], read: Callable[[SiteFacts], Mapping[str, int]]) -> Callable[[SiteFacts], Labelled]:
    """Return what reads a count for each word, 0 where there is none."""
    return lambda site: [((word,), read(site).get(word, 0)) for word in words]


def _of_gateways(read: Callable[[GatewayFacts], Value]) -> Callable[[SiteFacts], Labelled]:
    return lambda site: [((one.name,), read(one)) for one in site.gateways]


def _of_statuses(read: Callable[[Status], Value]) -> Callable[[SiteFacts], Labelled]:
    """Return what reads the last status of each gateway that has spoken. A last will has no figures."""
    return lambda site: [
        ((one.name,), read(one.status)) for one in site.gateways if one.status is not None and one.status.version
    ]


def _read_alarms_active(site: SiteFacts) -> Labelled:
    return [((one.name, kind), one.alarms_active.get(kind, 0)) for one in site.gateways for kind in GATEWAY_KINDS]


def _read_dropped(site: SiteFacts) -> Labelled:
    for one in site.gateways:
        counts = dict.fromkeys((*DROPPED, OTHER), 0)
        for what, count in (one.status.dropped if one.status else {}).items():
            counts[what if what in DROPPED else OTHER] += count
        yield from (((one.name, what), count) for what, count in counts.items() if count)


def _read_online(one: GatewayFacts) -> Value:
    return None if one.state == "unknown" else float(one.state == "online")


def _read_score(one: GatewayFacts) -> Value:
    """Return the score of a gateway that is there: of one that is not it is of before."""
    return one.status.score_over_level if one.status is not None and one.state == "online" else None


def _is_synchronised(status: Status) -> Value:
    return None if status.clock == "unknown" else float(status.clock == "synchronised")


def _read_recent(site: SiteFacts) -> Labelled:
    of_windows = {"10m": site.alarms.last_10_minutes, "24h": site.alarms.last_day}
    return [((kind, window), counts.get(kind, 0)) for window, counts in of_windows.items() for kind in KINDS]


def _read_rounds(site: SiteFacts) -> Labelled:
    totals = site.training.totals
    outcomes = {"closed": ROUNDS_CLOSED, "given-up": ROUNDS_GIVEN_UP}
    return [((outcome,), totals.get(name, 0)) for outcome, name in outcomes.items()]


def _read_updates(site: SiteFacts) -> Labelled:
    totals = site.training.totals
    outcomes = {"admitted": UPDATES_ADMITTED, "refused": UPDATES_REFUSED}
    return [((outcome,), totals.get(name, 0)) for outcome, name in outcomes.items()]


GAUGE: Literal["gauge"] = "gauge"
COUNTER: Literal["counter"] = "counter"
OF_A_GATEWAY = ("gateway",)

FAMILIES = (
    Family(
        "aggregator_up",
        GAUGE,
        "1 while the aggregator has its store and gives signs of its work.",
        (),
        _of_site(lambda site: site.service.is_running),
    ),
    Family(
        "aggregator_start_timestamp_seconds",
        GAUGE,
        "When the aggregator began.",
        (),
        _of_site(lambda site: _in_seconds(site.service.began_ns)),
    ),
    Family(
        "aggregator_last_sign_timestamp_seconds",
        GAUGE,
        "When the aggregator last wrote that it works; it does once a minute.",
        (),
        _of_site(lambda site: _in_seconds(site.service.sign_ns)),
    ),
    Family(
        "broker_connected",
        GAUGE,
        "1 while the aggregator is connected to the broker.",
        (),
        _of_site(lambda site: site.service.is_connected),
    ),
    Family(
        "store_schema_version",
        GAUGE,
        "The schema of the store.",
        (),
        _of_site(lambda site: site.store.schema_version),
    ),
    Family(
        "store_size_bytes",
        GAUGE,
        "What the store takes.",
        (),
        _of_site(lambda site: site.store.size_bytes),
    ),
    Family(
        "store_free_bytes",
        GAUGE,
        "What the disk of the store has left; none of PostgreSQL.",
        (),
        _of_site(lambda site: site.store.free_bytes),
    ),
    Family(
        "store_set_back",
        GAUGE,
        "1 where gateways have answered later rounds than the store knows.",
        (),
        _of_site(lambda site: site.store.is_set_back),
    ),
    Family(
        "backup_last_timestamp_seconds",
        GAUGE,
        "When the last backup was made; none where there was none.",
        (),
        _of_site(lambda site: _in_seconds(site.store.backup_ns)),
    ),
    Family(
        "certificate_expiry_timestamp_seconds",
        GAUGE,
        "When a certificate of the site itself ends: of its authority, its broker, its aggregator.",
        ("kind",),
        lambda site: [((kind,), until_ns / NS) for kind, until_ns in site.certificates_until_ns.items()],
    ),
    Family(
        "gateways",
        GAUGE,
        "Gateways by state; while the aggregator does not work or is not connected, unknown.",
        ("state",),
        _by_word(get_args(GatewayState), lambda site: {str(state): count for state, count in site.states.items()}),
    ),
    Family(
        "gateway_online",
        GAUGE,
        "1 while a gateway is online, 0 while offline; none while nobody knows.",
        OF_A_GATEWAY,
        _of_gateways(_read_online),
    ),
    Family(
        "gateway_last_seen_timestamp_seconds",
        GAUGE,
        "When a gateway was last received live.",
        OF_A_GATEWAY,
        _of_gateways(lambda one: _in_seconds(one.seen_ns)),
    ),
    Family(
        "gateway_score_over_level_ratio",
        GAUGE,
        "Score of the last window that was judged over its level; from 1 on it is unusual.",
        OF_A_GATEWAY,
        _of_gateways(_read_score),
    ),
    Family(
        "gateway_windows_total",
        COUNTER,
        "Whole windows since the agent began.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.windows),
    ),
    Family(
        "gateway_windows_lost_total",
        COUNTER,
        "Windows that lacked samples, since the agent began.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.windows_lost),
    ),
    Family(
        "gateway_dropped_total",
        COUNTER,
        "What a gateway had to give up, by kind, since the agent began.",
        ("gateway", "kind"),
        _read_dropped,
    ),
    Family(
        "gateway_baseline_windows",
        GAUGE,
        "Windows of the baseline.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.baseline_windows),
    ),
    Family(
        "gateway_baseline_needed_windows",
        GAUGE,
        "Windows that the baseline is to have.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.baseline_needed),
    ),
    Family(
        "gateway_model_version",
        GAUGE,
        "Version of the model in force; 0: none.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.model_version),
    ),
    Family(
        "gateway_alarms_active",
        GAUGE,
        "Alarms that stand.",
        ("gateway", "kind"),
        _read_alarms_active,
    ),
    Family(
        "gateway_clock_synchronised",
        GAUGE,
        "1 while the clock of a gateway is set; none where it cannot tell.",
        OF_A_GATEWAY,
        _of_statuses(_is_synchronised),
    ),
    Family(
        "gateway_outbox_items",
        GAUGE,
        "What waits on a gateway to be acknowledged.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.outbox),
    ),
    Family(
        "gateway_outbox_bytes",
        GAUGE,
        "What that takes of its store, with what is kept free to say what was lost.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.outbox_bytes),
    ),
    Family(
        "gateway_sent_bytes_total",
        COUNTER,
        "Sent by a gateway since the agent began.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.bytes_sent),
    ),
    Family(
        "gateway_received_bytes_total",
        COUNTER,
        "Received by a gateway since the agent began.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.bytes_received),
    ),
    Family(
        "gateway_starts_total",
        COUNTER,
        "Starts of agents on the store of a gateway.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.starts),
    ),
    Family(
        "gateway_privacy_epsilon",
        GAUGE,
        "Privacy that a gateway has spent, where it keeps differential privacy.",
        OF_A_GATEWAY,
        _of_statuses(lambda status: status.privacy_epsilon),
    ),
    Family(
        "gateway_certificate_expiry_timestamp_seconds",
        GAUGE,
        "When the certificate of a gateway ends.",
        OF_A_GATEWAY,
        _of_gateways(lambda one: _in_seconds(one.certificate_until_ns)),
    ),
    Family(
        "alarms_active",
        GAUGE,
        "Alarms that stand, of all gateways and of the whole site (fleet).",
        ("kind",),
        _by_word(KINDS, lambda site: site.alarms.active),
    ),
    Family(
        "alarms_by_state",
        GAUGE,
        "Alarms that stand by their state of ISA-18.2.",
        ("state",),
        _by_word(ACTIVE_STATES, lambda site: site.alarms.states),
    ),
    Family(
        "alarms_recent",
        GAUGE,
        "Alarms that came within the last 10 minutes, in which EEMUA 191 counts, and 24 hours.",
        ("kind", "window"),
        _read_recent,
    ),
    Family(
        "alarm_messages_refused_total",
        COUNTER,
        "Messages of alarms that were refused.",
        (),
        _of_site(lambda site: site.alarms.messages_refused),
    ),
    Family(
        "rounds_total",
        COUNTER,
        "Rounds of trainings that ended, by outcome.",
        ("outcome",),
        _read_rounds,
    ),
    Family(
        "rounds_open_seconds_total",
        COUNTER,
        "How long rounds that ended were open.",
        (),
        _of_site(lambda site: site.training.totals.get(ROUNDS_OPEN_MS, 0) / 1_000),
    ),
    Family(
        "updates_total",
        COUNTER,
        "Updates in rounds that ended, by outcome.",
        ("outcome",),
        _read_updates,
    ),
    Family(
        "updates_received_bytes_total",
        COUNTER,
        "Received of updates in rounds that ended.",
        (),
        _of_site(lambda site: site.training.totals.get(UPDATES_BYTES, 0)),
    ),
    Family(
        "training_round",
        GAUGE,
        "Index of the round at hand.",
        (),
        _of_site(lambda site: site.training.round_index),
    ),
    Family(
        "training_round_updates",
        GAUGE,
        "Updates that are counted in the round at hand.",
        (),
        _of_site(lambda site: None if site.training.round_index is None else site.training.answers),
    ),
    Family(
        "model_version",
        GAUGE,
        "Version of the model that all gateways are to have; 0: none.",
        (),
        _of_site(lambda site: site.training.model_version),
    ),
    Family(
        "release_stage",
        GAUGE,
        "1 for the stage of the release at hand.",
        ("stage",),
        _by_word(get_args(Stage), lambda site: {site.training.release_stage: 1}),
    ),
    Family(
        "notifications_waiting",
        GAUGE,
        "Changes of alarms that wait for a receiver.",
        ("channel",),
        lambda site: [((one.channel,), one.waiting) for one in site.notifications],
    ),
    Family(
        "notifications_dropped_total",
        COUNTER,
        "Given up, as too many waited.",
        ("channel",),
        lambda site: [((one.channel,), one.dropped) for one in site.notifications],
    ),
    Family(
        "notifications_refused_total",
        COUNTER,
        "Given up, as the receiver refused them.",
        ("channel",),
        lambda site: [((one.channel,), one.refused) for one in site.notifications],
    ),
)
