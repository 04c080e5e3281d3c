"""Goal: the rules tell what they are written for, on evidence that is made of nothing else, and bound what they say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.evidence.likely_cause import Kind, find_likely_cause
from fedgate.config.evidence.observation import BINS_LEAST, measure_onset
from fedgate.config.protocol.evidence import AlarmEvidence, BandChange, ChannelHealth, Standout, fit, make_trail
from fedgate.models.alarms.attribution import Evidence
from fedgate.models.time_units import format_moment
from tests.support.evidence_samples import T0_NS, make_evidence

BANDS, BEFORE, LEVEL = 40, 40, 10.0
STILL = (0,) * BANDS
LINE = (*STILL[:20], 25, *STILL[21:])
DOWN = (*STILL[:16], 12, 9, 0, -12, -9, *STILL[21:])
UP = (*STILL[:16], -12, -9, 0, 12, 9, *STILL[21:])
RAISED, LOWERED = (15,) * BANDS, (-15,) * BANDS


@dataclass(frozen=True)
class Case:
    """Spreads off by channel, what the farthest feature is, and the bands of each; the last channel is the air."""

    spreads: tuple[float, ...]
    bands: tuple[tuple[int, ...], ...] = ()
    farthest: str = "band"
    rises: int = 1  # windows that the score takes to the level
    air: float = 0.0
    weather: Evidence = "usual"
    power: Evidence = ""
    crest: float = 0.0
    first: str = "a.band"
    names: tuple[str, ...] = field(default=("a", "b", "c"))


def make_health(name: str, off: float, farthest: str, *, is_covariate: bool = False) -> ChannelHealth:
    return ChannelHealth(
        channel=name,
        features=9,
        outside=int(abs(off) > 1.0),
        farthest=f"{name[:99]}.{farthest}",
        deviation=off,
        is_covariate=is_covariate,
    )


def make_case(case: Case) -> AlarmEvidence:
    health = [make_health(name, off, case.farthest) for name, off in zip(case.names, case.spreads, strict=False)]
    air = make_health("air", case.air, "level", is_covariate=True)
    scores = [0.1 * (place % 2) for place in range(BEFORE)]
    scores += [LEVEL * (place + 1) / case.rises for place in range(case.rises)]
    trail = make_trail([(T0_NS + place * 10**9, score, LEVEL) for place, score in enumerate(scores)])
    stands_out = [
        Standout(feature=name, text=name, amount=5.0, value=1.0, median=0.0, spread=1.0, deviation=off)
        for name, off in ((case.first, 9.0), ("a.crest", case.crest))
    ]
    return make_evidence(bands=BANDS).model_copy(
        update={
            "onset_ns": T0_NS + (len(scores) - 1) * 10**9,
            "health": (*health, air),
            "changes": tuple(
                BandChange(channel=name, decibels=of) for name, of in zip(case.names, case.bands, strict=False)
            ),
            "trail": trail,
            "contributions": tuple(stands_out),
            "weather": case.weather,
            "power": case.power,
        }
    )


FAR, NEAR = (9.0, -8.0, 7.0), (1.2, -2.0, 0.5)
CASES: dict[str, tuple[Case, Kind, str]] = {
    "one of three": (Case((1.2, 9.0, 0.5), (STILL, RAISED, STILL)), "sensor", "look at b, at mounting"),
    "two means of three": (Case((9.0, 8.0, 0.5), (STILL,) * 3, "level"), "damage", "Probably damage"),
    "peaks down": (
        Case(FAR, (DOWN,) * 3),
        "damage",
        "down in all 3, most clearly in a from about 19.5 to 16.5 Hz, as where stiffness is lost",
    ),
    "peaks down beside a line": (Case(FAR, (DOWN, LINE, DOWN)), "damage", "Probably damage"),
    "a line": (Case(FAR, (LINE, LINE, STILL)), "work", "energy at one frequency has risen, about 20.5 Hz"),
    "blows": (
        Case(FAR, (RAISED,) * 3, crest=6.0),
        "work",
        "no peak has moved; a crest factor is as high as blows make it",
    ),
    "energy at once, and a peak down": (
        Case(FAR, ((*RAISED[:18], 20, -12, *RAISED[20:]), RAISED, RAISED)),
        "undetermined",
        "many bands have risen in all 3; peaks have moved down in a from about 19.5 to 18.5 Hz",
    ),
    "energy at once": (Case(FAR, (RAISED,) * 3), "load", "many bands have risen in all 3; no peak has moved"),
    "blows by and by": (Case(FAR, (RAISED,) * 3, rises=20, crest=6.0), "load", "works, traffic or wind"),
    "wind": (Case(FAR, (RAISED,) * 3, rises=20), "weather", "blows make it; nothing that is measured shows wind"),
    "neither soon nor late, with a crest": (
        Case(FAR, (RAISED,) * 3, rises=6, crest=6.0),
        "work",
        "over 5 s, from ",
    ),
    "neither soon nor late, without one": (Case(FAR, (RAISED,) * 3, rises=6), "weather", "many bands have risen"),
    "the air alone": (
        Case(NEAR, (STILL,) * 3, air=-9.0, weather="unusual"),
        "weather",
        "air: mean is 9 healthy spreads below its median; of the structure none of 3 is",
    ),
    "the air first": (Case(FAR, (STILL,) * 3, air=9.0, weather="unusual", first="air.level"), "weather", "go back"),
    "peaks up in the cold": (Case(FAR, (UP,) * 3, air=-2.0, weather="unusual"), "weather", "moved up in all 3"),
    "peaks down in the cold": (Case(FAR, (DOWN,) * 3, air=-9.0, weather="unusual"), "damage", "does not account"),
    "explained by the weather": (
        Case(FAR, (DOWN,) * 3, weather="explained"),
        "weather",
        "which accounts for the alarm",
    ),
    "explained by the supply": (Case(FAR, power="explained"), "power", "baseline or just switched on, which accounts"),
    "means that were not compared": (
        Case(FAR, (LOWERED,) * 3, "level"),
        "undetermined",
        "many bands have fallen in all 3",
    ),
    "nothing far": (Case(NEAR, (STILL,) * 3), "undetermined", "none of 3 is clearly outside"),
    "one channel, the others as they were, its peak down": (
        Case((9.0, 0.5, 1.2), (DOWN, STILL, STILL)),
        "undetermined",
        "as where stiffness is lost",
    ),
    "a line, a peak that moved in one channel": (Case(FAR, (DOWN, LINE, LINE)), "work", "one frequency"),
    "a gust that is strong in few bands": (
        Case(FAR, ((*(15, 12), *(5,) * (BANDS - 2)),) * 3, rises=20),
        "weather",
        "go with the wind",
    ),
    "the air first, one channel far": (
        Case((9.0, 0.5, 1.2), (LOWERED, STILL, STILL), air=9.0, weather="unusual", first="air.level"),
        "sensor",
        "fallen in a",
    ),
    "the air first, one channel far, others changed": (
        Case((9.0, 0.5, 1.2), (STILL, UP, UP), air=9.0, weather="unusual", first="air.level"),
        "weather",
        "peaks have moved up in b, c, most clearly in b from",
    ),
    "peaks down in what is not far": (Case(NEAR, (DOWN,) * 3), "undetermined", "none of 3 is clearly outside"),
    "means that creep": (
        Case(FAR, (STILL,) * 3, "level", rises=20),
        "undetermined",
        "all 3 (a: mean is 9 healthy spreads above its median; b: mean is 8 healthy spreads below",
    ),
    "one channel, its mean": (
        Case((9.0,), (STILL,), "level", names=("a",)),
        "undetermined",
        "see whether other gateways have changed",
    ),
    "one channel": (
        Case((9.0,), (RAISED,), names=("a",)),
        "undetermined",
        "one, and no other to compare it with: a.band",
    ),
    "one channel, peaks down": (Case((9.0,), (DOWN,), names=("a",)), "damage", "moved down"),
    "no channel": (Case((), (LINE, LINE)), "undetermined", "The rules cannot say"),
    "a line in what is not far": (Case(NEAR, (LINE,) * 3), "undetermined", "none of 3 is clearly outside"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_says_what_it_is_and_why(case: str) -> None:
    given_, kind, words = CASES[case]
    found = find_likely_cause(make_case(given_))
    assert found.kind == kind
    assert words in " ".join((found.verdict, *found.signs.values()))


def shift(*pairs: tuple[int, int]) -> tuple[int, ...]:
    """Return bands that are as usual but for some."""
    found = [0] * BANDS
    for place, decibels in pairs:
        found[place] = decibels
    return tuple(found)


FEW = range(20, 24)
EDGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Kind]] = {
    "a peak that moved as far as it may, and farther": (shift((30, -8), (23, 6)), shift((30, -8), (22, 6)), "damage"),
    "a band that rose enough": (shift((30, -8), (28, 6)), shift((30, -8), (28, 5)), "damage"),
    "a band that fell enough": (shift((30, -8), (28, 6)), shift((30, -7), (28, 6)), "damage"),
    "a peak that rose more below than above": (
        shift((30, -8), (28, 9), (32, 8)), shift((30, -8), (28, 8), (32, 9)), "damage",
    ),
    "a line that is strong": (shift((20, 10)), shift((20, 9)), "work"),
    "a line of few bands": (shift(*((at, 10) for at in FEW)), shift(*((at, 10) for at in (*FEW, 24))), "work"),
    "many bands": (shift(*((at, 15) for at in range(14))), shift(*((at, 15) for at in range(13))), "load"),
    "bands to one side": (
        shift(*((at, 15) for at in range(16)), *((at, -3) for at in range(30, 34))),
        shift(*((at, 15) for at in range(16)), *((at, -3) for at in range(30, 35))),
        "load",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edge", EDGES)
def test_a_rule_holds_to_its_limit_and_no_farther(edge: str) -> None:
    within, beyond, kind = EDGES[edge]
    assert find_likely_cause(make_case(Case(FAR, (within,) * 3))).kind == kind
    assert find_likely_cause(make_case(Case(FAR, (beyond,) * 3))).kind != kind


def test_a_line_may_lie_in_the_next_band_of_another_channel_and_no_farther() -> None:
    lines = [shift((place, 25)) for place in (20, 21, 23)]
    assert find_likely_cause(make_case(Case(FAR, (lines[0], lines[1], STILL)))).kind == "work"
    assert find_likely_cause(make_case(Case(FAR, (lines[0], lines[2], STILL)))).kind == "undetermined"


@pytest.mark.parametrize(("rises", "word"), [(1, "abrupt"), (5, "abrupt"), (6, ""), (7, "gradual"), (20, "gradual")])
def test_how_it_came_is_counted_in_windows(rises: int, word: str) -> None:
    onset = measure_onset(make_case(Case(FAR, rises=rises)))
    assert onset is not None and onset.word == word


def test_what_one_sensor_does_is_said() -> None:
    mean = Case((9.0, 0.5, 1.2), (STILL,) * 3, "level")
    spikes = Case((9.0, 0.5, 1.2), (RAISED, STILL, STILL), crest=6.0)
    expected = "its mean has shifted, and few of its bands have changed"
    assert find_likely_cause(make_case(mean)).signs["change"] == expected
    unknown = replace(mean, bands=(), names=("x", "y", "z"))
    assert find_likely_cause(make_case(unknown)).signs["change"] == "its mean has shifted"
    assert find_likely_cause(make_case(spikes)).signs["change"] == "many bands have risen in a, with spikes"


def test_what_was_over_the_level_before_is_said() -> None:
    whole = make_case(Case(FAR))
    assert whole.trail is not None and "before" not in find_likely_cause(whole).signs["rise"]
    trail = whole.trail.model_copy(update={"scores": (2.0 * LEVEL, *whole.trail.scores[1:])})
    signs = find_likely_cause(whole.model_copy(update={"trail": trail})).signs
    assert signs["rise"].endswith(f"; over the alarm level before, in 1 window, first {format_moment(T0_NS)}")


def test_what_is_not_measured_is_said() -> None:
    whole = make_case(Case(FAR, weather=""))
    assert find_likely_cause(whole).signs["weather and supply"] == "not known"
    bare = whole.model_copy(update={"health": whole.health[:-1]})
    assert find_likely_cause(bare).signs["weather and supply"] == "not measured here"
    signs = find_likely_cause(make_case(Case(FAR, weather="usual"))).signs
    assert signs["weather"] == "within the baseline (air)" and "supply" not in signs
    signs = find_likely_cause(make_case(Case(FAR, weather="usual", power="usual"))).signs
    assert (signs["weather"], signs["covariates"]) == ("within the baseline", "air")


def test_what_the_score_would_be_without_the_weather_is_said_where_that_stands_out_most() -> None:
    whole = make_case(Case(FAR, (STILL,) * 3, air=9.0, weather="unusual", first="air.level"))
    found = find_likely_cause(whole)
    rest = whole.score - whole.contributions[0].amount
    assert list(found.signs)[:2] == ["channels", "weather"] and found.signs["channels"].startswith("air")
    level = f"{'below' if rest < whole.level else 'still above'} the level of {whole.level:.3g}"
    assert found.signs["weather"] == f"outside of the baseline; at its median the score would be {rest:.3g}, {level}"
    gusts = make_case(Case(FAR, (RAISED,) * 3, rises=20, weather="unusual", first="a.band"))
    assert "at its median" not in find_likely_cause(gusts).signs["weather"]


def test_what_stands_out_first_is_of_a_channel_that_is_clearly_outside_and_far_itself() -> None:
    whole = make_case(Case((9.0, -8.0, 0.5), (STILL,) * 3))
    first, other = whole.contributions
    names = ("c.band[3.1-3.4Hz]", "a.rms", "b.band[3.1-3.4Hz]")
    shown = [
        first.model_copy(update={"feature": name, "text": name, "deviation": off})
        for name, off in zip(names, (9.0, 1.0, 9.0), strict=True)
    ]
    signs = find_likely_cause(whole.model_copy(update={"contributions": (*shown, other)})).signs
    assert signs["channels"] == "2 of 3 (a, b), most of all b.band[3.1-3.4Hz]"


@pytest.mark.parametrize("case", [Case((9.0,), (STILL,), names=("a",)), Case((), ())])
def test_a_covariate_that_is_the_cause_is_named_beside_one_channel_too(case: Case) -> None:
    whole = make_case(replace(case, air=-9.0, weather="explained"))
    assert find_likely_cause(whole).signs["channels"].startswith("air: mean is 9 healthy spreads below its median")


def test_a_rule_that_is_no_score_says_nothing_of_what_the_score_would_be() -> None:
    whole = make_case(Case(NEAR, (STILL,) * 3, air=9.0, weather="unusual", first="air.level"))
    assert "the score would be" in find_likely_cause(whole).signs["weather"]
    ewma = find_likely_cause(whole.model_copy(update={"rule": "ewma"}))
    assert "the score would be" not in ewma.signs["weather"]


def test_channels_with_a_known_fault_do_not_count() -> None:
    whole = make_case(Case((9.0, 9.0, 0.5), (STILL,) * 3))
    health = tuple(one.model_copy(update={"is_faulty": one.channel == "a"}) for one in whole.health)
    cut = whole.model_copy(update={"health": health, "cut": ("well channels",)})
    channels = find_likely_cause(cut).signs["channels"]
    assert channels.startswith("one alone of the 2 without a known fault that are listed (b: band is 9")


@pytest.mark.parametrize(("rises", "began_s"), [(4, None), (20, 15)])
def test_from_when_on_the_score_rose_is_said_where_it_took_its_time(rises: int, began_s: int | None) -> None:
    whole = make_case(Case(FAR, rises=rises))
    rising_ns = find_likely_cause(whole).rising_ns
    assert rising_ns == (None if began_s is None else whole.onset_ns - began_s * 10**9)


@pytest.mark.parametrize("bands", [(DOWN, RAISED, RAISED), (LINE, LINE, DOWN), (UP, RAISED, RAISED)])
def test_that_no_peak_has_moved_is_said_where_that_is_known_of_each_channel(bands: tuple[tuple[int, ...], ...]) -> None:
    clause = "no peak has moved"
    whole = make_case(Case(FAR, bands))
    assert clause not in find_likely_cause(whole).signs["change"]
    still = make_case(Case(FAR, (RAISED,) * 3))
    assert still.spectrum is not None and clause in find_likely_cause(still).signs["change"]
    coarse = tuple((place + 0.5) * 0.1 for place in range(BANDS + 1))
    spectrum = still.spectrum.model_copy(update={"edges_hz": coarse})
    unknown = find_likely_cause(still.model_copy(update={"spectrum": spectrum}))
    assert clause not in unknown.signs["change"]


def test_a_direction_is_said_of_a_feature_and_of_a_channel_by_its_mean_alone() -> None:
    whole = make_case(Case(NEAR, (STILL,) * 3, air=9.0, weather="unusual"))
    gusts = {"farthest": "air.deviation"}
    health = tuple(one.model_copy(update=gusts if one.is_covariate else {}) for one in whole.health)
    signs = find_likely_cause(whole.model_copy(update={"health": health})).signs
    assert "air: standard deviation is 9 healthy spreads above its median; of the" in signs["channels"]


def test_a_gap_in_the_scores_is_no_slow_rise() -> None:
    whole = make_case(Case(FAR, (RAISED,) * 3, crest=6.0))
    assert whole.trail is not None
    late = tuple(at_s + 10_800.0 * (place >= BEFORE) for place, at_s in enumerate(whole.trail.offsets_s))
    trail = whole.trail.model_copy(update={"offsets_s": late})
    apart = whole.model_copy(update={"trail": trail, "onset_ns": whole.onset_ns + 10_800 * 10**9})
    found = find_likely_cause(apart)
    assert found.kind == "work" and "rise" not in found.signs


def test_bands_of_few_bins_say_nothing_of_peaks() -> None:
    whole = make_case(Case(FAR, (DOWN,) * 3))
    assert whole.spectrum is not None
    for bins, kind in ((BINS_LEAST, "damage"), (BINS_LEAST - 1, "undetermined")):
        edges_hz = tuple((place * bins + 0.5) * 0.1 for place in range(BANDS + 1))
        spectrum = whole.spectrum.model_copy(update={"edges_hz": edges_hz})
        assert find_likely_cause(whole.model_copy(update={"spectrum": spectrum})).kind == kind


def test_a_fault_that_was_found_is_said_and_its_channel_counts_no_more() -> None:
    whole = make_case(Case(FAR, (STILL,) * 3, "level"))
    two, all_ = (
        tuple(one.model_copy(update={"is_faulty": one.channel in names}) for one in whole.health)
        for names in (("a", "b"), ("a", "b", "c"))
    )
    found = find_likely_cause(whole.model_copy(update={"health": two}))
    assert found.kind == "sensor" and found.signs["fault"] == "found in a, b" and "look at c" in found.verdict
    assert "look at a, b, c" in find_likely_cause(whole.model_copy(update={"health": all_})).verdict


def test_a_covariate_is_known_by_its_whole_name_and_weather_by_what_the_supply_is_not() -> None:
    whole = make_case(Case(FAR, (STILL,) * 3, air=-9.0, weather="unusual", first="air.deck.level"))
    assert find_likely_cause(whole).kind == "undetermined"
    supplied = make_case(Case(FAR, (STILL,) * 3, air=-9.0, weather="unusual", power="unusual", first="air.level"))
    assert find_likely_cause(supplied).kind == "undetermined"


def test_a_feature_that_never_moved_in_the_baseline_is_clearly_outside() -> None:
    whole = make_case(Case((1.2, 9.0, 0.5), (STILL,) * 3))
    still = tuple(one.model_copy(update={"deviation": None} if one.channel == "b" else {}) for one in whole.health)
    found = find_likely_cause(whole.model_copy(update={"health": still}))
    assert found.kind == "sensor" and "b: band has moved, as it never did" in found.signs["channels"]


def test_without_bands_and_scores_the_channels_still_speak() -> None:
    bare = make_case(Case((1.2, 9.0, 0.5))).model_copy(update={"spectrum": None, "changes": (), "trail": None})
    assert find_likely_cause(bare).kind == "sensor"
    assert find_likely_cause(replace_names(bare)).kind == "undetermined"


def replace_names(evidence: AlarmEvidence) -> AlarmEvidence:
    """Let all channels be far, of which nothing more is known."""
    health = tuple(one.model_copy(update={"outside": 1, "deviation": 9.0}) for one in evidence.health)
    return evidence.model_copy(update={"health": health})


DECIBELS = st.lists(st.integers(-99, 99), min_size=BANDS, max_size=BANDS).map(tuple)


@settings(max_examples=50, deadline=None)
@given(
    bands=st.lists(DECIBELS, max_size=12),
    spreads=st.floats(-1e30, 1e30),
    rises=st.integers(1, 60),
    far_s=st.sampled_from([-1e30, -1e12, 0.0, 1e9, 1e30]),
    weather=st.sampled_from(["", "usual", "unusual", "explained"]),
)
def test_whatever_a_gateway_sends_what_is_said_is_short(
    bands: list[tuple[int, ...]], spreads: float, rises: int, far_s: float, weather: Evidence
) -> None:
    names = tuple(f"{place}".ljust(120, "x") for place in range(12))
    case = replace(Case((spreads,) * 12, tuple(bands), rises=rises, weather=weather, air=spreads), names=names)
    whole = make_case(case)
    assert whole.trail is not None
    moments = {"offsets_s": (far_s, *whole.trail.offsets_s[1:]), "scores": (1e30, *whole.trail.scores[1:])}
    sent = whole.model_copy(update={"trail": whole.trail.model_copy(update=moments)})
    found = find_likely_cause(AlarmEvidence.from_bytes(fit(sent).to_bytes()))
    assert found.verdict and all(0 < len(sign) < 1_600 for sign in found.signs.values())


def test_of_peaks_as_high_the_nearest_is_named_and_no_distance_twice() -> None:
    for side, expected in ((-1, "19.5 to 18.5 Hz"), (1, "19.5 to 20.5 Hz")):
        bands = shift((19, -12), *((19 + side * off, 9) for off in (1, 2, 3)))
        signs = find_likely_cause(make_case(Case(FAR, (bands,) * 3, air=-2.0, weather="unusual"))).signs
        assert expected in signs["change"]
    texts = {"b: energy at 3 Hz is 8 healthy spreads below its median": -8.0, "b: mean is 21, and never left 20": None}
    for text, off in texts.items():
        alone = make_case(Case((1.2, -8.0, 0.5), (STILL,) * 3, first="b.band"))
        first = alone.contributions[0].model_copy(update={"text": text, "deviation": off})
        health = (alone.health[0], alone.health[1].model_copy(update={"deviation": off}), *alone.health[2:])
        found = find_likely_cause(alone.model_copy(update={"contributions": (first,), "health": health}))
        assert found.signs["channels"] == f"one alone of 3 ({text})"
