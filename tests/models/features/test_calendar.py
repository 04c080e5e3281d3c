"""Calendar features against Python's own calendar, moment by moment, across changes of summer time."""

import json
import math
import re
import tomllib
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.config.settings.settings import GatewaySettings
from fedgate.models.features.spec import FeatureError, FeatureSpec, extract, extract_many, feature_names
from tests.support.syntax import ROOT

HOUR_NS = 3_600 * 10**9
ALL = ("hour", "weekday", "workday", "year")


def spec_of(*steps: dict[str, Any], **changes: Any) -> FeatureSpec:
    keys = {"rate_hz": 1 / 900, "window_s": 3_600.0, "channels": ("room",), "steps": steps}
    return FeatureSpec.model_validate(keys | changes)


def ns_of(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def told(t_ns: int, zone: str, holidays: tuple[date, ...] = ()) -> list[float]:
    """Return hour, weekday, workday and year of a moment, by Python's calendar."""
    local = datetime.fromtimestamp(t_ns // 10**9, ZoneInfo(zone))
    day = (local.hour * 3_600 + local.minute * 60 + local.second + t_ns % 10**9 / 1e9) / 86_400
    first, following = date(local.year, 1, 1), date(local.year + 1, 1, 1)
    year = ((local.date() - first).days + day) / (following - first).days
    found: list[float] = []
    for part in (day, (local.weekday() + day) / 7, None, year):
        if part is None:
            found.append(float(local.weekday() < 5 and local.date() not in holidays))
        else:
            found += [math.sin(2 * math.pi * part), math.cos(2 * math.pi * part)]
    return found


moments = st.integers(0, 2**32).map(lambda t_s: t_s * 10**9)
zones = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"])


@settings(deadline=None)
@given(moments, zones)
def test_every_moment_is_that_of_the_calendar(t_ns: int, zone: str) -> None:
    spec = spec_of({"kind": "calendar", "zone": zone, "values": ALL})
    found = extract(spec, np.zeros((4, 1)), t_ns).reshape(-1, 4)  # (7, T): channel after channel
    expected = [told(t_ns + k * HOUR_NS // 4, zone) for k in range(4)]
    np.testing.assert_allclose(found, np.transpose(expected), atol=1e-6)


@pytest.mark.parametrize("day", [datetime(2024, 3, 31, tzinfo=UTC), datetime(2024, 10, 27, tzinfo=UTC)])
def test_the_hours_of_a_day_on_which_the_clocks_change(day: datetime) -> None:
    """In Berlin 02:00 is followed by 03:00 in March; in October the hour from 02:00 comes twice."""
    spec = spec_of(
        {"kind": "calendar", "zone": "Europe/Berlin", "values": ("hour",)}, rate_hz=1 / 3_600, window_s=7_200.0
    )
    starts = np.array([ns_of(day) + k * HOUR_NS for k in (0, 2, 4)])
    sines, cosines = np.split(extract_many(spec, np.zeros((3, 2, 1)), starts), 2, axis=1)
    hours = np.round(np.arctan2(sines, cosines) / (2 * np.pi) * 24).ravel() % 24
    assert hours.tolist() == ([1, 3, 4, 5, 6, 7] if day.month == 3 else [2, 2, 3, 4, 5, 6])


def test_weekends_and_holidays_are_no_workdays() -> None:
    step = {"kind": "calendar", "values": ("workday",), "per": "window", "holidays": ("2024-05-01", "2024-05-09")}
    spec = spec_of(step, window_s=86_400.0)
    starts = np.array([ns_of(datetime(2024, 5, k, tzinfo=UTC)) for k in range(1, 15)])
    found = extract_many(spec, np.zeros((14, 96, 1)), starts).ravel()
    assert found.tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1]


def test_a_network_sees_the_time_beside_the_samples() -> None:
    """Rows are channel after channel, so that what runs along the samples runs along the hours."""
    spec = spec_of({"kind": "samples"}, {"kind": "calendar"}, channels=("warm", "damp"))
    names = feature_names(spec)
    assert names[::4] == (
        *("warm.sample[0]", "damp.sample[0]"),
        *("calendar.hour_sin[0]", "calendar.hour_cos[0]", "calendar.workday[0]"),
    )
    row = extract(spec, np.arange(8.0).reshape(4, 2), 6 * HOUR_NS).reshape(5, 4)
    assert row[:2].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    np.testing.assert_allclose(row[2], np.sin(2 * np.pi * np.array([6, 6.25, 6.5, 6.75]) / 24), atol=1e-6)
    assert row[4].tolist() == [1, 1, 1, 1]  # 1 January 1970 was a Thursday


@pytest.mark.parametrize(("chosen", "hours"), [({"rate_hz": 1 / 1_800}, [0.125, 0.625]), ({"per": "window"}, [0.375])])
def test_blocks_have_the_time_of_their_middle(chosen: dict[str, Any], hours: list[float]) -> None:
    spec = spec_of({"kind": "calendar", "values": ("hour",), **chosen})
    sines = extract(spec, np.zeros((4, 1)), 0)[: len(hours)]
    np.testing.assert_allclose(sines, np.sin(2 * np.pi * np.array(hours) / 24), rtol=1e-6)


def test_windows_are_measured_alike_alone_and_together() -> None:
    spec = spec_of({"kind": "level"}, {"kind": "calendar", "zone": "Europe/Berlin", "values": ALL})
    values = np.random.default_rng(0).normal(size=(50, 4, 1))
    starts = np.arange(50) * 37 * HOUR_NS + 1_700_000_000 * 10**9
    alone = [extract(spec, window, int(t_ns)) for window, t_ns in zip(values, starts, strict=True)]
    np.testing.assert_array_equal(extract_many(spec, values, starts), np.stack(alone))
    assert extract_many(spec, values[:0], starts[:0]).shape == (0, len(alone[0]))


def test_the_time_is_needed_where_it_is_asked_for_and_nowhere_else() -> None:
    window, plain = np.arange(4.0)[:, None], spec_of({"kind": "level"})
    assert extract(plain, window).tolist() == extract(plain, window, HOUR_NS).tolist() == [1.5]
    with pytest.raises(FeatureError, match=r"no time of the windows given; expected .* t_ns"):
        extract(spec_of({"kind": "level"}, {"kind": "calendar"}), window)
    wrongs: list[Any] = [np.zeros(2, dtype=np.int64), np.zeros(1)]
    for wrong in wrongs:
        with pytest.raises(
            FeatureError, match=r"t_ns of shape .*; expected a whole number of ns for each of 1 windows"
        ):
            extract_many(plain, window[None], wrong)


def test_a_calendar_survives_json_and_older_specifications_are_as_they_were() -> None:
    step = {"kind": "calendar", "zone": "Europe/Berlin", "holidays": ["2024-12-25"]}
    spec = spec_of({"kind": "level"}, step)
    assert FeatureSpec.model_validate_json(spec.model_dump_json()) == spec
    assert (
        spec_of({"kind": "samples"})
        .model_dump_json()
        .endswith('"steps":[{"channels":null,"kind":"samples","rate_hz":null}]}')
    )


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"zone": "Europe/Bonn"}, r"zone\n.*'Europe/Bonn' is unknown here; expected a name such as"),
        ({"zone": "../../etc/passwd"}, r"expected a name such as"),
        ({"zone": "Europe"}, r"expected a name such as"),
        ({"zone": ""}, r"expected a name such as"),
        ({"values": ()}, r"values\n.*at least 1 item"),
        ({"values": ("moon",)}, r"'hour', 'weekday', 'workday' or 'year'"),
        ({"values": ("hour", "hour")}, r"steps\[0\].values: .* expected every one once"),
        ({"channels": ("room",)}, r"steps\[0\].channels: \['room'\] given; expected none"),
        ({"rate_hz": 1 / 2_700}, r"steps\[0\].rate_hz: .* would average 3 of the 4 samples"),
        ({"per": "window", "rate_hz": 1 / 900}, r"steps\[0\].rate_hz: .* expected none with per = 'window'"),
        ({"holidays": ("Christmas",)}, r"holidays.0\n"),
    ],
)
def test_a_contradiction_names_its_key(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec_of({"kind": "calendar", **chosen})


def test_the_room_of_the_documentation_is_a_valid_gateway() -> None:
    page = (ROOT / "docs" / "reference" / "features.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(\[\[source.*?)^```", page, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "calendar" in block]
    tables = {"gateway": {"id": "room-1", "site": "house"}, **tomllib.loads(block)}
    found = GatewaySettings.model_validate_json(json.dumps(tables), strict=True)
    assert (found.streams[0].aggregate, found.features.samples) == ("mean", 24)
    assert len(feature_names(found.features)) == 24 + 3 * 24
