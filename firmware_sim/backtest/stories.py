"""Prepared stories: alarms of one gateway each, as an operator meets them, and apart from them what really happened.

The gateway is the product's: the backtest lets the agent's own pipeline, alarms and evidence run over a recording made
of shipped ones and a cause. Channels are permuted and named by numbers, the order of the stories is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedgate.cloud_aggregator.alarms.workflow import AlarmCondition, AlarmKey, find_state, fold
from fedgate.cloud_aggregator.commands.alarms.alarm_text import describe_event, format_alarm
from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.training import AlgorithmChoice
from fedgate.firmware_sim.backtest.backtest import backtest
from fedgate.firmware_sim.backtest.story_causes import CAUSES, WORKS, Kind, Played
from fedgate.firmware_sim.backtest.story_sites import (
    AIR,
    FOOTBRIDGE_FEATURES,
    HOURS_BEFORE,
    RATE_HZ,
    TEST_BRIDGE_BASELINE_S,
    TEST_BRIDGE_FEATURES,
    WINDOWS_AN_HOUR,
)
from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build
from fedgate.models.time_units import DAY_S, HOUR_S, NS

ALGORITHM = AlgorithmChoice().name
MIDNIGHT_NS = 1_794_268_800 * NS  # of a Tuesday: when a story of the footbridge begins
MORNING_NS = MIDNIGHT_NS + 9 * 3_600 * NS  # and one of the test bridge
ANNOUNCED_BEFORE_S, ANNOUNCED_LONGER_S = 1_800.0, 3_600.0
RUNS_OF_WINDOWS = 5  # above the level, until an alarm is raised
SITE = "stories"
ATTEMPTS = 16


class Story(NamedTuple):
    """One story: what happened, what the gateway said, and what is known of works."""

    number: int
    kind: Kind
    what: str
    onset_ns: int
    disturbed: tuple[str, ...]  # channels
    messages: tuple[Alarm, ...]
    evidence: tuple[AlarmEvidence, ...]
    events: tuple[AlarmEvent, ...]  # maintenance that was announced

    @property
    def gateway(self) -> str:
        """Its name."""
        return name_gateway(self.number)

    @property
    def raised(self) -> Alarm:
        """The first alarm of the structure; raises `LookupError` where none was raised."""
        found = next((one for one in self.messages if one.kind == "anomaly" and one.state == "raised"), None)
        if found is None:
            raise LookupError(f"story {self.number} raised no alarm of the structure")
        return found

    @property
    def shown(self) -> AlarmEvidence:
        """What that alarm rests on; raises `LookupError` where nothing followed it."""
        found = next((one for one in self.evidence if one.alarm == self.raised.id), None)
        if found is None:
            raise LookupError(f"the alarm of story {self.number} has no evidence")
        return found


def guess_cause(evidence: AlarmEvidence) -> str:
    """Return what somebody would say who knows nothing but how many channels are clearly outside: the trivial reader
    that rules must beat.
    """
    own = [one for one in evidence.health if not one.is_covariate]
    if evidence.contributions and evidence.contributions[0].feature.startswith(f"{AIR}."):
        return "weather"
    return "sensor" if sum(one.is_clear for one in own) == 1 else "work"


def name_gateway(number: int) -> str:
    """Return the name of a story's gateway."""
    return f"gateway-{number}"


def make_stories(seed: int, hour_s: float = HOUR_S, say: Callable[[str], None] | None = None) -> list[Story]:
    """Return the eight stories of a seed; raises `LookupError` where a cause raises no alarm.

    :param hour_s: seconds that count as an hour of the footbridge: with fewer the stories are sooner told.
    :param say: is called with how far it is.
    """
    rng = np.random.default_rng(seed)
    order, announced = rng.permutation(len(CAUSES)), int(rng.integers(2))
    works, stories = 0, list[Story]()
    for number, place in enumerate(order.tolist(), start=1):
        if say is not None:
            say(f"story {number} of {len(order)}")
        is_works = CAUSES[place] in WORKS
        is_announced = is_works and works == announced
        works += is_works
        stories.append(_draw_story(number, place, seed, hour_s, is_announced=is_announced))
    return stories


def _draw_story(number: int, place: int, seed: int, hour_s: float, *, is_announced: bool) -> Story:
    """Return the first drawn story of a cause whose first alarm of the structure begins behind its onset: one that
    nobody is told of is none. Raises `LookupError` where none of some is.
    """
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng((seed, place, attempt))
        story = _play(number, CAUSES[place](rng, hour_s), rng, hour_s, is_announced=is_announced)
        raised = next((one for one in story.messages if one.kind == "anomaly"), None)
        if raised is not None and raised.onset_ns > story.onset_ns:
            return story
    raise LookupError(f"none of {ATTEMPTS} stories of {CAUSES[place].__name__} raised its alarm; choose another seed")


def _play(number: int, played: Played, rng: np.random.Generator, hour_s: float, *, is_announced: bool) -> Story:
    order = rng.permutation(3)
    names = tuple(f"sensor-{place + 1}" for place in range(3))
    is_footbridge = played.values.shape[1] > len(names)
    values = np.column_stack([played.values[:, order], played.values[:, 3:]])
    begin_ns = MIDNIGHT_NS if is_footbridge else MORNING_NS
    units = ("g",) * 3 if is_footbridge else tuple(("kN", "kN", "um/m")[place] for place in order)
    channels = [Channel(name, unit) for name, unit in zip(names, units, strict=True)]
    channels += [Channel(AIR, "degF")] if is_footbridge else []
    rate_hz = RATE_HZ if is_footbridge else TEST_BRIDGE_FEATURES["rate_hz"]
    recording = Recording(f"story-{number}", tuple(channels), rate_hz, values, t0_ns=begin_ns)
    settings = GatewaySettings.model_validate(_make_settings(number, channels, hour_s, is_footbridge=is_footbridge))
    onset_ns = begin_ns + round(played.onset_s * NS)
    events = (_announce(number, played, begin_ns, hour_s),) if is_announced else ()
    algorithm = build(ALGORITHM, len(feature_names(settings.features)), {})
    times = tuple((one.body["from_ns"], one.body["to_ns"]) for one in events)
    found = backtest(settings, recording, algorithm, seed=0, maintenance=times)
    disturbed = tuple(names[order.tolist().index(column)] for column in played.disturbed)
    return Story(number, played.kind, played.what, onset_ns, disturbed, found.messages, found.evidence, events)


def _make_settings(number: int, channels: list[Channel], hour_s: float, *, is_footbridge: bool) -> dict[str, Any]:
    sensors = [{"role": one.name, "unit": one.unit} for one in channels if one.name != AIR]
    names = [one["role"] for one in sensors]
    source: list[dict[str, Any]] = [{"name": "sensors", "kind": "frames", "channels": sensors}]
    features = FOOTBRIDGE_FEATURES if is_footbridge else TEST_BRIDGE_FEATURES
    steps = [{**step, "channels": names} for step in features["steps"]]
    alarm: dict[str, Any] = {"false_alarms_per_day": 0.05, "reach": 3.0, "minimum_duration_s": 10.0}
    windows = round((TEST_BRIDGE_BASELINE_S - 10.0) / 2.5)
    if is_footbridge:
        window_s = hour_s / WINDOWS_AN_HOUR
        source.append({"name": "weather", "kind": "frames", "channels": [{"role": AIR, "unit": "degF"}],
                       "fill": "hold", "gap_s": 60.0})  # fmt: skip
        steps.append({"kind": "level", "channels": [AIR]})
        features = {**features, "window_s": window_s, "hop_s": window_s}
        alarm |= {"minimum_duration_s": RUNS_OF_WINDOWS * window_s, "covariates": {"weather": [f"{AIR}.level"]}}
        windows = HOURS_BEFORE * WINDOWS_AN_HOUR
    return {
        "gateway": {"id": name_gateway(number), "site": SITE, "device": {"location": f"bridge {number}"}},
        "source": source,
        "features": {**features, "channels": [one.name for one in channels], "steps": steps},
        "baseline": {"windows": windows},
        "alarm": alarm,
    }


def _announce(number: int, played: Played, begin_ns: int, hour_s: float) -> AlarmEvent:
    """Return the maintenance that a site announces for works of a story."""
    scale = hour_s / HOUR_S
    from_ns = begin_ns + round((played.onset_s - ANNOUNCED_BEFORE_S * scale) * NS)
    to_ns = begin_ns + round(((played.end_s or played.onset_s) + ANNOUNCED_LONGER_S * scale) * NS)
    body = {"window": 1, "from_ns": from_ns, "to_ns": to_ns, "text": "maintenance of the bridge"}
    return AlarmEvent(name_gateway(number), "", "", from_ns - round(DAY_S * NS), "operator", "window", body)


def render_story(story: Story) -> str:
    """Return what `cloud-aggregator alarms show` prints when the alarm is raised, and below it all alarms of the
    gateway up to then.
    """
    alarm = story.raised
    sent = [one for one in story.messages if one.t_ns <= alarm.t_ns]
    history = [describe_event(one) for one in story.events]
    rows = [
        {"raised": cli.format_time(one.t_ns), "cause": one.cause, "state": one.state, "severity": one.severity}
        for one in sent
    ]
    listed = cli.format_rows(("raised", "cause", "state", "severity"), rows)
    return (
        f"{format_alarm(_make_row(story), history, story.shown)}\n\nall alarms of {story.gateway} so far:\n{listed}\n"
    )


def _make_row(story: Story) -> dict[str, Any]:
    alarm = story.raised
    key, condition = AlarmKey(story.gateway, alarm.id), AlarmCondition(alarm.cause, alarm.onset_ns, is_active=True)
    row = alarm.model_dump(include={"id", "text", "cause", "severity", "onset_ns", "rule", "score", "level"})
    return {
        **row,
        "gateway": story.gateway,
        "state": find_state(fold(story.events), key, condition, alarm.t_ns),
        "is_active": True,
        "score_of": "raise",
        "begun_ns": alarm.onset_ns,
        "onset": cli.format_time(alarm.onset_ns),
        "raised": cli.format_time(alarm.t_ns),
    }
