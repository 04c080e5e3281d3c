"""Goal: what Prometheus gets of a site is what its store knows, under names and labels that stay few.

Method: facts as they may be, a site with something for every metric, and the page that lists the metrics.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from fedgate.cloud_aggregator.enrolment import ForgetGateway
from fedgate.cloud_aggregator.events import RecordCount, RecordGateway
from fedgate.cloud_aggregator.metrics.facts import SiteFacts
from fedgate.cloud_aggregator.metrics.families import FAMILIES, OTHER, PREFIX, collect
from fedgate.cloud_aggregator.runtime.metrics_server import encode
from fedgate.cloud_aggregator.runtime.site_facts import read_facts
from fedgate.cloud_aggregator.storage import store as store_module
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.config.settings.settings import AggregatorSettings, load
from tests.support.metric_samples import make_round, make_site, make_status
from tests.support.prometheus import promtool
from tests.support.syntax import ROOT

PAGE = ROOT / "docs" / "reference" / "monitoring.md"
Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site that nobody changes."""
    return make_site(tmp_path_factory.mktemp("site") / "site")


def read(settings: Path) -> SiteFacts:
    return read_facts(load(settings, AggregatorSettings), time.time_ns())


def sampled(site: SiteFacts) -> Samples:
    """Return the samples by the name without prefix, each under its labels without the site."""
    found = defaultdict[str, dict[tuple[str, ...], float]](dict)
    for metric in collect(site):
        for sample in metric.samples:
            assert sample.labels["site"] == site.site
            labels = tuple(value for label, value in sample.labels.items() if label != "site")
            of_name = found[sample.name.removeprefix(PREFIX)]
            assert labels not in of_name
            of_name[labels] = sample.value
    return found


def alive(site: SiteFacts) -> SiteFacts:
    """Return the facts as they were with a service at work, which a store alone does not show."""
    gateways = tuple(replace(one, state="online") for one in site.gateways)
    return replace(site, service=replace(site.service, is_running=True, is_connected=True), gateways=gateways)


def test_a_site_is_told_as_its_store_has_it(made: Path) -> None:
    found = sampled(alive(read(made)))
    assert {name for (name,) in found["gateway_online"]} == {"north", "south"}  # west was revoked
    assert found["gateways"] == {("online",): 0, ("offline",): 0, ("revoked",): 1, ("unknown",): 2}
    assert found["gateway_score_over_level_ratio"][("north",)] == 0.25
    assert found["gateway_windows_total"][("south",)] == 900
    assert found["gateway_dropped_total"] == {
        (name, what): count for name in ("north", "south") for what, count in (("telemetry", 4), (OTHER, 2))
    }
    assert found["gateway_alarms_active"] == {
        ("north", "anomaly"): 1,
        ("north", "sensor"): 1,
        ("south", "anomaly"): 0,
        ("south", "sensor"): 0,
    }
    assert found["alarms_active"] == {("anomaly",): 1, ("sensor",): 1, ("fleet",): 1}
    standing = {labels[0]: count for labels, count in found["alarms_by_state"].items() if count}
    assert standing == {"unacknowledged": 2, "acknowledged": 1}
    assert found["alarms_recent"][("sensor", "24h")] == 2 and found["alarms_recent"][("sensor", "10m")] == 1
    assert found["rounds_total"] == {("closed",): 1, ("given-up",): 0}
    assert found["updates_total"] == {("admitted",): 2, ("refused",): 1}
    assert found["rounds_open_seconds_total"] == {(): 60}
    assert found["training_round"] == {(): 4} and found["training_round_updates"] == {(): 1}
    assert found["notifications_waiting"] == {("on-call",): 0}
    assert {kind for (kind,) in found["certificate_expiry_timestamp_seconds"]} == {"aggregator", "authority", "broker"}
    days = (found["gateway_certificate_expiry_timestamp_seconds"][("north",)] - time.time()) / 86_400
    assert 59 < days <= 60
    assert found.keys() == {family.name for family in FAMILIES}


def test_what_is_not_known_is_not_told(made: Path) -> None:
    site = read(made)  # whose service does not run
    gateway = replace(site.gateways[0], status=None, seen_ns=None, certificate_until_ns=None)
    bare = replace(site, gateways=(gateway,), store=replace(site.store, free_bytes=None, backup_ns=None))
    found = sampled(replace(bare, training=replace(bare.training, round_index=None), certificates_until_ns={}))
    assert found["aggregator_up"] == {(): 0} and found["broker_connected"] == {(): 0}
    assert {name for name in found if name.startswith("gateway_")} == {"gateway_alarms_active"}
    absent = {"store_free_bytes", "backup_last_timestamp_seconds", "training_round", "training_round_updates"}
    assert not absent & found.keys()


def test_the_score_of_a_gateway_that_is_away_is_not_shown_as_one_of_now(made: Path) -> None:
    site = alive(read(made))
    away = replace(site, gateways=tuple(replace(one, state="offline") for one in site.gateways))
    found = sampled(away)
    assert "gateway_score_over_level_ratio" not in found and set(found["gateway_online"].values()) == {0}
    assert found["gateway_windows_total"] == sampled(site)["gateway_windows_total"]


def test_a_hostile_gateway_adds_no_series_and_breaks_no_line(made: Path, tmp_path: Path) -> None:
    site = alive(read(made))
    hostile = 'x"} 1\nfedgate_aggregator_up{site="\\\x1b[2J' + "y" * 500
    status = make_status(version=hostile.replace("\n", "")[:20].replace("\x1b", ""))
    status = status.model_copy(update={"dropped": {f"{hostile}{number}": 1 for number in range(9_000)}})
    one = replace(site.gateways[0], name=hostile, status=status, alarms_active={hostile: 3})
    changed = replace(site, site=hostile, gateways=(one, *site.gateways[1:]))
    page = encode(collect(changed))[0].decode()
    before = encode(collect(site))[0].decode()
    assert page.count("\n") <= before.count("\n") and "\x1b" not in page
    assert all(len(line) < 300 for line in page.splitlines())
    (tmp_path / "page").write_text(page, encoding="utf-8")
    with (tmp_path / "page").open() as given:
        promtool("check", "metrics", stdin=given)


def test_the_series_of_a_gateway_end_when_it_is_removed(tmp_path: Path) -> None:
    settings = make_site(tmp_path / "site")
    with closing(Store(settings.parent / "aggregator.db")) as store:
        store.commit([RecordGateway("passing", make_status(), 1)])
        assert 'gateway="passing"' in encode(collect(read(settings)))[0].decode()
        store.commit([ForgetGateway("passing")])
    assert 'gateway="passing"' not in encode(collect(read(settings)))[0].decode()


def test_totals_of_rounds_never_fall_whatever_rows_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ROUNDS_KEPT", 3)
    settings = make_site(tmp_path / "site")
    with closing(Store(settings.parent / "aggregator.db")) as store:
        for number in range(1, 9):
            store.commit([make_round(number, *(("north",) if number % 2 else ()), refused=number)])
        assert len(store.read_rows("rounds")) == 3
        found = sampled(read(settings))
        assert found["rounds_total"] == {("closed",): 5, ("given-up",): 4}
        assert found["updates_total"] == {("admitted",): 6, ("refused",): 37}
        assert found["updates_received_bytes_total"] == {(): 9 * 4_096}
        assert found["rounds_open_seconds_total"] == {(): 540}


def test_who_reads_for_metrics_cannot_write(made: Path) -> None:
    with closing(Store(made.parent / "aggregator.db", create=False, is_read_only=True)) as store:
        with pytest.raises((StoreError, SQLAlchemyError)) as caught:
            store.commit([RecordCount("name", 1)])
        assert "readonly" in str(caught.value) or isinstance(caught.value, OperationalError)


def test_the_page_lists_every_metric_as_it_is(made: Path) -> None:
    rows = re.findall(
        r"^\| `(fedgate_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    expected = [
        (PREFIX + one.name, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.text) for one in FAMILIES
    ]
    assert rows == expected
    for metric in collect(alive(read(made))):
        assert {"site", *(set(metric.samples[0].labels) - {"site"})} <= {
            "site",
            *("gateway", "kind", "state", "stage", "outcome", "channel", "window"),
        }
