"""Goal: the rules tell what they are written for, on evidence that is made of nothing else, and bound what they say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.evidence.reading import Kind, read_evidence
from fedgate.config.protocol.evidence import AlarmEvidence, BandChange, ChannelHealth, Standout, make_trail
from fedgate.models.alarms.attribution import Evidence
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
    "one of three": (Case((1.2, 9.0, 0.5), (STILL, RAISED, STILL)), "sensor", "look at b, its mounting"),
    "two means of three": (Case((9.0, 8.0, 0.5), (STILL,) * 3, "level"), "structure", "Probably real"),
    "peaks down": (Case(FAR, (DOWN,) * 3), "structure", "moved down in frequency (a, b, c)"),
    "peaks down beside a line": (Case(FAR, (DOWN, LINE, DOWN)), "structure", "Probably real"),
    "a line": (Case(FAR, (LINE, LINE, STILL)), "works", "One frequency, about 20.5 Hz"),
    "blows": (Case(FAR, (RAISED,) * 3, crest=6.0), "works", "It came abruptly: the score took 1 s"),
    "energy at once": (Case(FAR, (RAISED,) * 3), "load", "works, traffic or wind"),
    "blows by and by": (Case(FAR, (RAISED,) * 3, rises=20, crest=6.0), "load", "works, traffic or wind"),
    "wind": (Case(FAR, (RAISED,) * 3, rises=20), "weather", "It came gradually: the score took 15 s"),
    "neither soon nor late, with a crest": (Case(FAR, (RAISED,) * 3, rises=6, crest=6.0), "works", "took 5 s"),
    "neither soon nor late, without one": (Case(FAR, (RAISED,) * 3, rises=6), "weather", "Many bands have risen"),
    "the air alone": (Case(NEAR, (STILL,) * 3, air=-9.0, weather="unusual"), "weather", "air is 9 healthy spreads off"),
    "the air first": (Case(FAR, (STILL,) * 3, air=9.0, weather="unusual", first="air.level"), "weather", "go back"),
    "peaks up in the cold": (Case(FAR, (UP,) * 3, air=-2.0, weather="unusual"), "weather", "moved up in frequency"),
    "peaks down in the cold": (Case(FAR, (DOWN,) * 3, air=-9.0, weather="unusual"), "structure", "does not account"),
    "explained by the weather": (Case(FAR, (DOWN,) * 3, weather="explained"), "weather", "and accounts for the alarm"),
    "explained by the supply": (Case(FAR, power="explained"), "power", "switched on, which accounts"),
    "means that were not compared": (Case(FAR, (LOWERED,) * 3, "level"), "undetermined", "Many bands have fallen"),
    "nothing far": (Case(NEAR, (STILL,) * 3), "undetermined", "None of 3 channels"),
    "one channel": (Case((9.0,), (RAISED,), names=("a",)), "undetermined", "There is one channel"),
    "one channel, peaks down": (Case((9.0,), (DOWN,), names=("a",)), "structure", "moved down"),
    "no channel": (Case((), (LINE, LINE)), "undetermined", "The rules cannot tell"),
    "a line in what is not far": (Case(NEAR, (LINE,) * 3), "undetermined", "None of 3 channels"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_says_what_it_is_and_why(case: str) -> None:
    given_, kind, words = CASES[case]
    found = read_evidence(make_case(given_))
    assert found.kind == kind
    assert words in " ".join((found.verdict, *found.signs))


def test_a_feature_that_never_moved_in_the_baseline_is_clearly_outside() -> None:
    whole = make_case(Case((1.2, 9.0, 0.5), (STILL,) * 3))
    still = tuple(one.model_copy(update={"deviation": None} if one.channel == "b" else {}) for one in whole.health)
    found = read_evidence(whole.model_copy(update={"health": still}))
    assert found.kind == "sensor" and "b has moved, which it never did" in found.signs[0]


def test_without_bands_and_scores_the_channels_still_speak() -> None:
    bare = make_case(Case((1.2, 9.0, 0.5))).model_copy(update={"spectrum": None, "changes": (), "trail": None})
    assert read_evidence(bare).kind == "sensor"
    assert read_evidence(replace_names(bare)).kind == "undetermined"


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
    weather=st.sampled_from(["", "usual", "unusual", "explained"]),
)
def test_whatever_a_gateway_sends_what_is_read_is_short(
    bands: list[tuple[int, ...]], spreads: float, rises: int, weather: Evidence
) -> None:
    names = tuple(f"{place}".ljust(120, "x") for place in range(12))
    case = replace(Case((spreads,) * 12, tuple(bands), rises=rises, weather=weather, air=spreads), names=names)
    found = read_evidence(make_case(case))
    assert found.verdict and all(0 < len(sign) < 800 for sign in found.signs)
