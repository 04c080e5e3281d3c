"""The signs of a likely cause in words: which channels, what has become of their bands, how the score rose, and what
was measured beside the structure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgate.config.evidence.observation import Bands, Observed, Onset, find_channel
from fedgate.config.protocol.evidence import CLEAR_SPREADS, AlarmEvidence, ChannelHealth, cut_text
from fedgate.models.features.describe import STATISTICS
from fedgate.models.time_units import NS, format_duration, format_moment

NAMED_MAX, LENGTH_MAX = 5, 120  # channels; characters of what is said of one
MEAN = ".level"  # how names of features end
CAUSES_BESIDE = ("weather", "power")  # the kinds of cause that covariates measure

# What covariates say, by the evidence of the gateway.
OF_WEATHER = {
    "usual": "within the baseline",
    "unusual": "outside of the baseline, which does not account for the alarm",
    "explained": "outside of the baseline, which accounts for the alarm",
}
OF_SUPPLY = OF_WEATHER | {
    "unusual": "outside of the baseline or just switched on, which does not account for the alarm",
    "explained": "outside of the baseline or just switched on, which accounts for the alarm",
}


def describe_channels(seen: Observed, kind: str) -> str:
    """Return which channels are clearly outside of their baseline, and by what: each by its mean, or what stands out
    first of them; covariates too, where these are the likely cause.
    """
    structure = _describe_structure(seen, kind)
    if not seen.covariates or kind not in CAUSES_BESIDE:
        return structure
    covariates = join_names([_describe_far(one, seen.evidence) for one in seen.covariates], "; ")
    return f"{covariates}; of the structure {structure}" if structure else covariates


def _describe_structure(seen: Observed, kind: str) -> str:
    clear, well = seen.clear, [one for one in seen.own if not one.is_faulty]
    far = [_describe_far(one, seen.evidence) for one in clear]
    first = _find_first(seen) or next(iter(far), "")
    if len(seen.own) < 2:
        alone = "one, and no other to compare it with" if seen.own else ""
        return f"{alone}: {first}" if first else alone
    of_how_many = f"{len(well)}{' without a known fault' if seen.faulty else ''}"
    if "well channels" in seen.evidence.cut:
        of_how_many = f"the {of_how_many} that are listed"
    if not clear:
        return f"none of {of_how_many} is clearly outside of the baseline"
    if len(clear) == 1:
        return f"one{' alone' if kind == 'sensor' else ''} of {of_how_many} ({first})"
    which = f"all {of_how_many}" if len(clear) == len(well) else f"{len(clear)} of {of_how_many}"
    if all(one.farthest.endswith(MEAN) for one in clear):
        return f"{which} ({join_names(far, '; ')})"
    return f"{which} ({join_names([one.channel for one in clear])}), most of all {first}"


def _describe_far(one: ChannelHealth, evidence: AlarmEvidence) -> str:
    """Return how far a channel is off, in plain words where its farthest feature is one that stands out."""
    if text := next((known.text for known in evidence.contributions if known.feature == one.farthest), ""):
        return cut_text(text, LENGTH_MAX)
    if not one.features or not one.farthest:
        return cut_text(one.channel, LENGTH_MAX)
    feature = one.farthest.removeprefix(f"{one.channel}.")
    name = f"{one.channel}: {STATISTICS.get(feature) or feature.replace('[', ' ').replace(']', '')}"
    if one.deviation is None:
        return f"{cut_text(name, LENGTH_MAX)} has moved, as it never did in the baseline"
    side = "above" if one.deviation > 0 else "below"
    return f"{cut_text(name, LENGTH_MAX)} is {abs(one.deviation):.3g} healthy spreads {side} its median"


def _find_first(seen: Observed) -> str:
    """Return what stands out first and far of the channels that are clearly outside; nothing where none of it does."""
    names = {one.channel for one in seen.clear}
    far = (one for one in seen.evidence.contributions if one.deviation is None or abs(one.deviation) >= CLEAR_SPREADS)
    return next((cut_text(one.text, LENGTH_MAX) for one in far if find_channel(one.feature) in names), "")


def describe_bands(seen: Observed, channels: Sequence[str]) -> str:
    """Return in which of some channels many bands have risen, or have fallen; nothing where in none."""
    if seen.bands is None:
        return ""
    for word, names in (("risen", seen.bands.raised), ("fallen", seen.bands.lowered)):
        if shown := [one for one in names if one in channels]:
            return f"many bands have {word}{_say_where(seen, shown)}"
    return ""


def describe_still_peaks(bands: Bands) -> str:
    """Return, behind a change, that no peak has moved; nothing where one has, or that is not known."""
    return "; no peak has moved" if bands.have_no_moves else ""


def show_move(seen: Observed, names: Sequence[str]) -> str:
    """Return in which channels peaks moved, and the clearest of the moves."""
    moves = {} if seen.bands is None else seen.bands.moves
    clearest = max(names, key=lambda name: moves[name].decibels)
    hertz = f"from about {moves[clearest].from_hz:.3g} to {moves[clearest].to_hz:.3g} Hz"
    where = _say_where(seen, names)
    return f"{where}, most clearly in {clearest} {hertz}" if len(names) > 1 else f"{where} {hertz}"


def _say_where(seen: Observed, names: Sequence[str]) -> str:
    """Return in which channels of the structure something is so; nothing where there is one alone."""
    if len(seen.own) == 1:
        return ""
    return f" in all {len(names)}" if len(names) == len(seen.own) else f" in {join_names(names)}"


def join_names(channels: Sequence[str], joint: str = ", ") -> str:
    """Return the first of some names, or of what is said of them, and how many more there are."""
    more = f" and {len(channels) - NAMED_MAX} more" if len(channels) > NAMED_MAX else ""
    return f"{joint.join(channels[:NAMED_MAX])}{more}"


def describe_rise(evidence: AlarmEvidence, onset: Onset | None) -> str:
    """Return how fast the score rose to the alarm level, and since when it was over that now and then before."""
    if onset is None:
        return _describe_earlier(evidence, evidence.onset_ns)
    if onset.rising_ns is None:
        rose = f"within {format_duration(max(onset.rise_s, evidence.window_s))}"
    else:
        rose = f"over {format_duration(onset.rise_s)}, from {format_moment(onset.rising_ns)} on"
    earlier = _describe_earlier(evidence, onset.rising_ns or evidence.onset_ns)
    return f"{rose}; {earlier}" if earlier else rose


def _describe_earlier(evidence: AlarmEvidence, until_ns: int) -> str:
    trail = evidence.trail
    if trail is None:
        return ""
    until_s = (until_ns - trail.first_ns) / NS
    rows = zip(trail.offsets_s, trail.scores, trail.list_levels(), strict=True)
    over_s = [at_s for at_s, score, level in rows if score >= level and at_s < until_s - 1e-3]
    if not over_s:
        return ""
    windows = f"{len(over_s)} window{'s' if len(over_s) > 1 else ''}"
    first = format_moment(trail.first_ns + round(over_s[0] * NS))
    known = " of those known" if "older scores" in evidence.cut else ""
    return f"over the alarm level before, in {windows}{known}, first {first}"


def describe_covariates(seen: Observed, kind: str) -> dict[str, str]:
    """Return what was measured beside the structure: of the weather, of the supply, and what that is; `channels` has it
    where it is the likely cause.
    """
    weather, power = seen.evidence.weather, seen.evidence.power
    covariates = [one for one in seen.evidence.health if one.is_covariate]
    if not weather and not power:
        return {"weather and supply": "not known" if covariates else "not measured here"}
    of_weather = OF_WEATHER.get(weather, "")
    if kind == "weather" and weather == "unusual":
        of_weather = f"outside of the baseline{_describe_share(seen)}"
    are_within = {weather, power} <= {"", "usual"}
    names = [one.channel if are_within else _describe_far(one, seen.evidence) for one in covariates]
    shown = "" if seen.covariates and kind in CAUSES_BESIDE else join_names(names, "; ")
    if weather and not power:
        return {"weather": f"{of_weather} ({shown})" if shown else of_weather}
    return {"weather": of_weather, "supply": OF_SUPPLY.get(power, ""), "covariates": shown}


def _describe_share(seen: Observed) -> str:
    """Return what the score would be with the median of the feature that stands out most; nothing where that is none
    of a covariate, or where it was no score that raised the alarm.
    """
    evidence, first = seen.evidence, next(iter(seen.evidence.contributions), None)
    names = {one.channel for one in seen.covariates}
    if first is None or evidence.rule != "score" or find_channel(first.feature) not in names:
        return ""
    rest = evidence.score - first.amount
    side = "below" if rest < evidence.level else "still above"
    return f"; at its median the score would be {rest:.3g}, {side} the level of {evidence.level:.3g}"
