"""Goal: a real Prometheus takes our metrics, our rules and every query of our dashboard.

Method: Debian's Prometheus watches a real `cloud-aggregator metrics --listen` whose store changes meanwhile; promtool
reads the rules and plays a bad and a good day to them. What is asked is taken from the files that we ship.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from fedgate.cloud_aggregator.events import RecordGateway
from fedgate.cloud_aggregator.metrics.families import FAMILIES, PREFIX
from fedgate.cloud_aggregator.storage.store import Store
from tests.cloud_aggregator.commands.test_operator_status import DAY_S, held
from tests.support.metric_samples import make_round, make_site, make_status, serving_metrics
from tests.support.prometheus import Prometheus, promtool, running_prometheus
from tests.support.syntax import ROOT
from tests.support.waiting import until

RULES, DASHBOARD = ROOT / "config" / "prometheus-rules.yml", ROOT / "config" / "grafana-dashboard.json"
DAYS = Path(__file__).parent / "data" / "alert-tests.yml"
VARIABLES = {"$site": "bridge", "$gateway": ".*"}
SELECTOR = re.compile(r"\b(fedgate_\w+|up)(?:\{([^}]*)\})?")


class Panel(NamedTuple):
    """A query of the dashboard."""

    title: str
    expression: str


def list_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def list_panels() -> list[Panel]:
    found = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(Panel(panel["title"], expression))
    return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has seen a site before and after a round, and after windows more."""
    folder = tmp_path_factory.mktemp("watched")
    settings = make_site(folder / "site")
    with (
        serving_metrics(settings) as address,
        running_prometheus(folder, address, RULES) as server,
        held(settings.parent / "aggregator.db", DAY_S),
        closing(Store(settings.parent / "aggregator.db")) as store,
    ):
        until(lambda: server.query("fedgate_rounds_total"))
        windows = {"windows": 950, "windows_lost": 9, "bytes_sent": 80_000, "bytes_received": 9_500}
        changed = make_status(**windows, dropped={"telemetry": 9})
        store.commit(
            [
                make_round(5, "north", refused=1),
                *(RecordGateway(name, changed, time.time_ns()) for name in ("north", "south")),
            ]
        )
        until(lambda: server.query('increase(fedgate_rounds_total{outcome="closed"}[1d]) > 0'))
        until(lambda: server.query("fedgate_aggregator_up == 1"))
        until(lambda: all(rule["health"] == "ok" for rule in seen_rules(server)))
        yield server


def seen_rules(server: Prometheus) -> list[Any]:
    found = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert len(found) == len(list_rules())
    return found


def list_firing(server: Prometheus) -> set[str]:
    return {rule["name"] for rule in seen_rules(server) if rule["state"] == "firing"}


@pytest.mark.soak
@pytest.mark.slow
def test_a_real_prometheus_reads_the_site_under_the_name_that_the_rules_go_by(watched: Prometheus) -> None:
    ((up),) = watched.query("up")
    assert up["metric"]["job"] == "fedgate" and up["value"][1] == "1"
    known = set(watched.ask("label/__name__/values"))
    assert {PREFIX + one.name for one in FAMILIES} <= known
    types = {name: each[0]["type"] for name, each in watched.ask("metadata").items() if name.startswith(PREFIX)}
    assert types == {PREFIX + one.name.removesuffix("_total"): one.kind for one in FAMILIES}


@pytest.mark.soak
@pytest.mark.slow
def test_every_panel_of_the_dashboard_shows_something(watched: Prometheus) -> None:
    empty = [panel for panel in list_panels() if not watched.query(panel.expression)]
    assert not empty
    for variable in json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]  # a test that fails says so
            found = watched.query(series.replace("$site", "bridge"))
            assert found and all(label in one["metric"] for one in found)


@pytest.mark.soak
@pytest.mark.slow
def test_every_rule_is_about_series_that_there_are(watched: Prometheus) -> None:
    for rule in list_rules():
        watched.query(rule["expr"])
        for name, labels in SELECTOR.findall(rule["expr"]):
            assert watched.query(f"{name}{{{labels}}}"), (rule["alert"], name, labels)
    wanted = {"FedgateUpdatesRefused", "FedgateGatewayGivesUp"}
    until(lambda: wanted <= list_firing(watched))  # rules are looked at five times a second
    assert list_firing(watched) == wanted


def test_every_name_in_rules_and_dashboard_is_one_of_ours() -> None:
    ours = {PREFIX + one.name: {"site", *one.labels} for one in FAMILIES}
    for expression in [*(rule["expr"] for rule in list_rules()), *(panel.expression for panel in list_panels())]:
        for name, labels in SELECTOR.findall(expression):
            if name != "up":
                assert set(re.findall(r"(\w+)[=!]", labels)) <= ours[name], expression


@pytest.mark.soak
def test_rules_are_good_and_each_fires_on_a_bad_day_and_none_on_a_good_one() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", DAYS)
    bad, good = yaml.safe_load(DAYS.read_text(encoding="utf-8"))["tests"]
    every = sorted(rule["alert"] for rule in list_rules())
    for day, fires in ((bad, True), (good, False)):
        expected = {one["alertname"]: bool(one["exp_alerts"]) for one in day["alert_rule_test"]}
        assert sorted(expected) == every and set(expected.values()) == {fires}


def test_the_dashboard_is_what_grafana_imports() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers)) and board["uid"] and board["title"] and "id" not in board
    places = set[tuple[int, int]]()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places and place["x"] + place["w"] <= 24
        places |= cells
        assert all(one["datasource"]["uid"] == "${datasource}" for one in (panel, *panel["targets"]))
