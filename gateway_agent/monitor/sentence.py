"""The text of an anomaly: one sentence of where it is, what has changed and since when, in the words of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate

from fedgate.config.protocol.evidence import count_json_bytes, cut_text
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.models.alarms.contributions import Contribution, select_named
from fedgate.models.alarms.rules import Height
from fedgate.models.features.describe import Meaning, describe_value
from fedgate.models.time_units import NS

FOUND_LENGTH = 300  # characters on features that stand out
Meanings = Mapping[str, Meaning]


def describe_contribution(meanings: Meanings, one: Contribution) -> str:
    """Return what one feature says, without its channel; one that nobody knows by its name and its spreads."""
    meaning = meanings.get(one.feature, Meaning("", one.feature))
    return describe_value(meaning, one.value, one.median, one.spread)


def format_since(onset_ns: int, *, is_synchronised: bool) -> str:
    """Return since when, in UTC; nothing where the clock is not known to be right."""
    return f" since {datetime.fromtimestamp(onset_ns // NS, UTC):%H:%M} UTC" if is_synchronised else ""


def describe_start(
    judge: ScoringModel,
    height: Height,
    standing_out: Sequence[Contribution],
    *,
    settings: GatewaySettings,
    since: str = "",
    outside: tuple[int, int] = (0, 0),
    most: int = FOUND_LENGTH,
) -> str:
    """Return what raised an anomaly: the place of the device, the features that stand out, as far as they fit into so
    many bytes of a message, since when, in how many channels where it is several, its score and its level.

    :param outside: channels that are outside of their baseline, and of how many.
    """
    whose = "the site" if judge.is_borrowed else "this gateway's own baseline"
    device, rule = settings.gateway.device, cut_text(height.rule, 60)
    place = cut_text(device.location, 80) if device is not None else ""
    beside = f"; {outside[0]} of {outside[1]} channels are clearly outside of their baseline" if outside[0] > 1 else ""
    tail = f"{since}{beside} ({rule} {height.statistic:.3g}, level {height.level:.3g} of {whose})"
    named = list(accumulate(_list_parts(settings.describe_features(), standing_out)))
    plain = f"{rule} {height.statistic:.3g} is above the level {height.level:.3g} of {whose}{since}"
    texts = [f"{place}, {found}{tail}" if place else f"{found}{tail}" for found in reversed(named)]
    texts += [
        *(f"{found}{tail}" for found in reversed(named)),
        f"{place}: {plain}{beside}" if place else f"{plain}{beside}",
    ]
    fitting = (text for text in texts if len(text) <= FOUND_LENGTH and count_json_bytes(text) <= most)
    return next(fitting, plain)


def _list_parts(meanings: Meanings, standing_out: Sequence[Contribution]) -> list[str]:
    """Return what each feature says, one behind the other; the channel of several in turn is told once."""
    parts, before = list[str](), None
    for one in select_named(standing_out):
        meaning = meanings.get(one.feature, Meaning("", one.feature))
        words = cut_text(describe_contribution(meanings, one), FOUND_LENGTH + 1)
        channel = cut_text(meaning.channel, FOUND_LENGTH + 1)
        joint = "" if not parts else ", " if meaning.channel == before else "; "
        is_new = meaning.channel and (meaning.channel != before or not parts)
        parts.append(f"{joint}{channel}: {words}" if is_new else f"{joint}{words}")
        before = meaning.channel
    return parts
