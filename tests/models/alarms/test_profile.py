"""Cells follow the clock on the wall, sums add up to the site's, and a profile says from whom it borrowed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.models.alarms.profile import (
    COUNT,
    EARLIEST_NS,
    ORIGINS,
    UNDATED,
    ProfileError,
    build_profile,
    cell_count,
    cells,
    context_columns,
    deviation,
    sums,
)
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.arrays import Arrays
from fedgate.models.features.local_time import local_hours

NS = 10**9
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe")
PLAIN = ProfileSpec(block_h=24, days="same", least=4)  # a single cell


def at(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * NS


def cell(spec: ProfileSpec, t_ns: int, *context: float) -> int:
    return int(cells(spec, np.array([t_ns]), np.array([context]).reshape(1, -1))[0])


@given(st.integers(EARLIEST_NS, at("2037-12-31T00:00:00")), st.sampled_from(ZONES))
def test_local_time_is_that_of_the_zone(t_ns: int, zone: str) -> None:
    hours, weekdays = local_hours(zone, np.array([t_ns, t_ns]))
    local = datetime.fromtimestamp(t_ns // NS, UTC).astimezone(ZoneInfo(zone))
    expected = local.hour + local.minute / 60 + local.second / 3600
    assert hours == pytest.approx([expected] * 2, abs=1 / 3599)
    assert weekdays.tolist() == [local.weekday()] * 2


@given(
    st.lists(st.tuples(st.integers(EARLIEST_NS, 2 * EARLIEST_NS), st.floats(-30, 40), st.floats(-2, 9)), max_size=20),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
    st.sampled_from(["same", "workday", "weekday"]),
    st.sampled_from(ZONES),
)
def test_cells_tell_apart_what_a_search_tells_apart(
    rows: list[tuple[int, float, float]], block_h: int, days: str, zone: str
) -> None:
    spec = ProfileSpec.model_validate(
        {"timezone": zone, "block_h": block_h, "days": days, "outdoor": "out", "context": {"load": (1.0, 5.0)}}
    )
    found = cells(spec, np.array([t for t, *_ in rows], dtype=np.int64), np.array([r[1:] for r in rows]).reshape(-1, 2))
    keys = []
    for t_ns, outdoor, load in rows:
        local = datetime.fromtimestamp(t_ns // NS, UTC).astimezone(ZoneInfo(zone))
        day = {"same": 0, "workday": local.weekday() >= 5, "weekday": local.weekday()}[days]
        bins = sum(outdoor >= edge for edge in (0, 10, 20)), sum(load >= edge for edge in (1, 5))
        keys.append((local.hour // block_h, day, *bins))
    for first, first_key in zip(found, keys, strict=True):
        assert 0 <= first < cell_count(spec)
        assert [first == second for second in found] == [first_key == second_key for second_key in keys]


def test_summer_time_moves_no_cell() -> None:
    spec = ProfileSpec(timezone="Europe/Berlin", block_h=1)
    winter, summer = (cell(spec, at(f"2025-{day}T08:30:00", "Europe/Berlin")) for day in ("03-28", "03-31"))
    assert winter == summer
    assert winter == cell(spec, at("2025-03-28T07:30:00"))
    assert winter != cell(spec, at("2025-03-31T07:30:00"))


def test_unknown_context_has_a_cell_of_its_own_and_infinity_has_none() -> None:
    spec = ProfileSpec(block_h=24, days="same", occupancy="people", outdoor="out")
    now = at("2025-06-04T12:00:00")
    found = {cell(spec, now, people, out) for people in (0, 1, math.nan) for out in (-5, 5, 15, 25, math.nan)}
    assert found == set(range(cell_count(spec)))
    assert cell(spec, now, math.inf, -math.inf) == cell(spec, now, 7.0, -40.0)
    assert cell(spec, now, 0.5, 10.0) == cell(spec, now, 1.0, 11.0)  # an edge belongs to the bin above


def test_a_clock_that_was_never_set_is_not_judged() -> None:
    spec = ProfileSpec(occupancy="people", least=2)
    assert cell(spec, 3600 * NS, 1.0) == UNDATED
    own = sums(spec, np.array([UNDATED, 3, 3]), np.ones((3, 2)))
    assert own[COUNT].sum() == 2
    assert deviation(build_profile(spec, own), UNDATED, np.ones(2)) is None


def windows(seed: int, count: int, spec: ProfileSpec, features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, cell_count(spec), count), rng.normal(size=(count, features))


def added(parts: list[Arrays]) -> Arrays:
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_a_sites_sums_are_those_of_all_windows(seed: int, cuts: list[int]) -> None:
    spec = ProfileSpec(block_h=12)
    places, z = windows(seed, 60, spec)
    edges = [0, *sorted(cuts), 60]
    parts = [sums(spec, places[a:b], z[a:b]) for a, b in pairwise(edges)]
    whole = sums(spec, places, z)
    assert all(np.allclose(total, whole[name], rtol=0, atol=1e-12) for name, total in added(parts).items())


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_a_profile_is_mean_and_deviation_of_a_cell(seed: int, least: int) -> None:
    spec = ProfileSpec(block_h=12, least=least)  # 4 cells
    places, z = windows(seed, 30, spec)
    profile = build_profile(spec, sums(spec, places, z))
    for place in range(cell_count(spec)):
        mine = z[places == place]
        rows = mine if len(mine) >= least else z
        assert profile.mean[place] == pytest.approx(rows.mean(axis=0), abs=1e-12)
        assert profile.deviation[place] == pytest.approx(np.maximum(rows.std(axis=0), spec.floor), abs=1e-9)
        assert ORIGINS[profile.origin[place]] == ("own" if len(mine) >= least else "own whole")
        now = z[0] + 0.5
        expected = np.max(np.abs(now - profile.mean[place]) / profile.deviation[place])
        assert deviation(profile, place, now) == pytest.approx(expected)
    assert sum(profile.origins.values()) == cell_count(spec)


@pytest.mark.parametrize(
    ("own_counts", "site_counts", "origins"),
    [
        ((4, 4), None, {"own": 2}),
        ((4, 3), None, {"own": 1, "own whole": 1}),
        ((4, 3), (8, 7), {"own": 1, "site": 1}),
        ((3, 0), (4, 0), {"site": 1, "site whole": 1}),
        ((0, 0), (2, 2), {"site whole": 2}),
        ((3, 1), (7, 3), {"site": 1, "own whole": 1}),
    ],
)
def test_a_cell_without_data_falls_to_the_site_and_says_so(
    own_counts: tuple[int, int], site_counts: tuple[int, int] | None, origins: dict[str, int]
) -> None:
    spec = ProfileSpec(block_h=24, days="workday", least=4)

    def given_counts(counts: tuple[int, int]) -> Arrays:
        places = np.repeat([0, 1], counts)
        return sums(spec, places, np.ones((len(places), 1)))

    profile = build_profile(spec, given_counts(own_counts), given_counts(site_counts) if site_counts else None)
    assert {name: count for name, count in profile.origins.items() if count} == origins


def test_no_data_anywhere_makes_no_profile() -> None:
    nothing = sums(PLAIN, np.zeros(0), np.zeros((0, 2)))
    few = sums(PLAIN, np.zeros(3), np.zeros((3, 2)))
    with pytest.raises(ProfileError, match=r"3 windows of this gateway and 0 of its site .* at least 4 of either"):
        build_profile(PLAIN, few, nothing)


def test_noon_heat_is_an_anomaly_at_midnight_only() -> None:
    rng = np.random.default_rng(1)
    spec = ProfileSpec(block_h=3, days="same", least=50)
    end_ns = at("2025-06-02T00:00:00") + np.arange(0, 30 * 86_400, 900) * NS
    hours = end_ns / NS % 86_400 / 3600
    z = np.stack([2 * np.sin(np.pi * hours / 24), 0 * hours], axis=1) + rng.normal(scale=0.1, size=(len(hours), 2))
    profile = build_profile(spec, sums(spec, cells(spec, end_ns, np.zeros((len(z), 0))), z))
    assert profile.origins == {"own": 8, "site": 0, "own whole": 0, "site whole": 0}
    warm = np.array([2.0, 0.0])
    noon, midnight = (cell(spec, at(f"2025-07-07T{hour}:30:00")) for hour in ("12", "00"))
    assert (deviation(profile, noon, warm) or 0) < 2
    assert (deviation(profile, midnight, warm) or 0) > 5


def test_a_constant_feature_is_judged_by_the_floor() -> None:
    profile = build_profile(PLAIN, sums(PLAIN, np.zeros(10), np.full((10, 1), 1e4)))
    assert deviation(profile, 0, np.array([1e4 + 0.3])) == pytest.approx(3.0)


def test_missing_context_is_refused_with_the_names_there_are() -> None:
    spec = ProfileSpec(occupancy="people.level", context={"load.level": (1.0,)})
    assert context_columns(spec, ("load.level", "x", "people.level")) == [2, 0]
    with pytest.raises(ProfileError, match=r"'people\.level' is not among the features; measured are load\.level, x:"):
        context_columns(spec, ("load.level", "x"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"timezone": "Mars/Olympus"}, r"timezone\n.*'Mars/Olympus' is unknown here"),
        ({"timezone": "../etc/passwd"}, "is unknown here"),
        ({"block_h": 5}, "divisor of 24"),
        ({"days": "moon"}, "days"),
        ({"context": {"a": (2.0, 1.0)}}, "a: edges .* expected ascending"),
        ({"context": {"a": ()}}, "at least 1 item"),
        ({"context": {"a": (math.nan,)}}, "finite"),
        ({"category": "lights", "outdoor": "out"}, "outdoor: does not count for category 'lights', as temperature"),
        ({"category": "access", "occupancy": "people"}, "occupancy: does not count for category 'access'"),
        ({"occupancy": "a", "context": {"a": (1.0,)}}, "every feature once"),
        ({"block_h": 1, "days": "weekday", "context": {"a": tuple(range(60))}}, "10416 cells, at most 10000"),
        ({"least": 1}, "least"),
        ({"floor": 0.0}, "floor"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProfileSpec.model_validate(keys)


def test_a_category_presets_what_is_not_given() -> None:
    assert (ProfileSpec(category="access").hours, ProfileSpec(category="access").day_kinds) == (1, "weekday")
    assert cell_count(ProfileSpec(category="water-leakage", occupancy="people")) == 3
    assert cell_count(ProfileSpec(category="access", block_h=12, days="same")) == 2


@pytest.mark.parametrize(
    ("places", "z", "message"),
    [
        ([0, 1], np.zeros((2, 2)), "below 1"),
        ([-2], np.zeros((1, 2)), "below 1"),
        ([0], np.zeros((2, 2)), r"\(n, F\)"),
        ([0], np.full((1, 2), np.nan), "2 of 2 features are not finite"),
    ],
)
def test_windows_that_do_not_fit_are_refused(places: list[int], z: np.ndarray, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        sums(PLAIN, np.array(places), z)


def test_sums_and_windows_of_another_shape_are_refused() -> None:
    own = sums(PLAIN, np.zeros(4), np.zeros((4, 2)))
    with pytest.raises(ProfileError, match="need the same"):
        build_profile(PLAIN, own, sums(PLAIN, np.zeros(4), np.zeros((4, 3))))
    with pytest.raises(ProfileError, match="need the same"):
        build_profile(ProfileSpec(block_h=12), own)
    with pytest.raises(ProfileError, match=r"no context"):
        cells(PLAIN, np.array([EARLIEST_NS]), np.zeros((1, 1)))
    with pytest.raises(ProfileError, match="expected one of 1 cells"):
        deviation(build_profile(PLAIN, own), 1, np.zeros(2))
    with pytest.raises(ProfileError, match="expected one of 1 cells"):
        deviation(build_profile(PLAIN, own), 0, np.zeros(3))


def test_a_day_has_as_many_windows_as_hours() -> None:
    spec = ProfileSpec(timezone="Europe/Berlin", block_h=1, days="same")
    start = datetime(2025, 10, 26, tzinfo=ZoneInfo("Europe/Berlin"))  # 25 hours long
    length = (start + timedelta(days=1)).timestamp() - start.timestamp()
    end_ns = np.array([(int(start.timestamp()) + 3600 * hour) * NS for hour in range(int(length) // 3600)])
    counts = np.bincount(cells(spec, end_ns, np.zeros((len(end_ns), 0))), minlength=24)
    assert counts.tolist() == [1, 1, 2, *[1] * 21]
