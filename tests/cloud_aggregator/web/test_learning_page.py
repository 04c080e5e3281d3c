"""Goal: a page shows who learned what together, each model beside the others, and lets an admin release one.

Method: a real store with rounds, models and statuses; the facts as a program gets them, the markup as a browser does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import (
    Durable,
    RecordGateway,
    RecordModel,
    RecordRound,
    SaveRollout,
    SaveTraining,
)
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.storage.training_table import NUMBER_BYTES
from fedgate.cloud_aggregator.web.pages import learning
from fedgate.cloud_aggregator.web.pages.buttons import BUTTONS, FormError
from fedgate.config.protocol.messages import Status
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.page_views import EVIL, NOW_NS, Markup, check_headings, commit, read_facts, render

DAY_OF_WINDOWS = 86_400  # of a second each
META: dict[str, Any] = {"run": "r", "round_index": 4, "phase": 1, "counted": ["a", "b"], "refused": 2}


def make_model(version: int, body: bytes = b"body") -> RecordModel:
    return RecordModel(FIRST[0].changed(version=version, created_ns=NOW_NS - version), body)


def make_status(version: int, **more: Any) -> Status:
    whole = {"state": "online", "baseline_windows": 9, "baseline_needed": 9, "model_version": version}
    return Status.model_validate(whole | more)


def put(folder: Path, *effects: Durable, **statuses: Status) -> None:
    commit(folder, *effects, *(RecordGateway(name, one, NOW_NS) for name, one in statuses.items()))


def read(folder: Path, tables: Any = None, **address: str) -> dict[str, Any]:
    return read_facts(folder, learning.PAGE, tables=tables, **address)


def save_rollout(stage: dict[str, Any], **held: int) -> SaveRollout:
    rollout = {"canaries": [], "recalled": [], "stopped": [], **stage}
    return SaveRollout(json.dumps({"everywhere": 0, "before": 0, "rollout": rollout} | held).encode(), NOW_NS)


def test_of_a_training_the_single_numbers_are_shown_and_its_large_arrays_not_read(tmp_path: Path) -> None:
    arrays = {
        "shared.gamma": np.array(2.5),
        "kept.spread": np.array(np.inf),
        "shared.vectors": np.zeros(NUMBER_BYTES),
        "total.weight": np.array(3.0),
    }
    put(tmp_path, SaveTraining(arrays, META))
    with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
        known = store.read_training(only_numbers=True)
        assert known is not None and known.arrays.keys() == arrays.keys() - {"shared.vectors"}
    found = read(tmp_path)["training"]
    assert found["figures"] == {"gamma": 2.5, "spread": None}
    assert (found["round"], found["answers"], found["refused"], found["quorum"]) == (4, 2, 2, 2)


def test_a_round_says_who_took_part_late_and_in_vain_and_what_it_took(tmp_path: Path) -> None:
    full = RecordRound(
        *("run", 6, "fedavg", ("east", "north"), 1, 77, 900),
        empty=("north",),
        phase=1,
        late=(("west", 5),),
        update_bytes=200,
        uncompressed_bytes=800,
        refusals=(("west", EVIL),),
    )
    put(tmp_path, RecordRound("run", 5, "fedavg", (), 0, 70), full)
    first, second = read(tmp_path)["rounds"]
    assert first["gateways"] == ["east", "north"] and first["empty"] == ["north"]
    assert first["late"] == [{"gateway": "west", "round": 5}]
    assert (first["compression"], first["refused"], first["bytes_received"], first["phase"]) == (4.0, 1, 900, 1)
    assert (second["gateways"], second["compression"], second["refusals"]) == ([], None, [])
    assert first["refusals"] == [{"gateway": "west", "why": EVIL}]
    assert "west: " in (markup := render(tmp_path, learning.PAGE, read(tmp_path))) and EVIL not in markup


@pytest.mark.soak
def test_rounds_come_a_page_at_a_time(tmp_path: Path) -> None:
    put(tmp_path, *(RecordRound("run", number, "fedavg", ("a",), 0, number, number) for number in range(45)))
    pages = [read(tmp_path, first=first) for first in ("", "20", "40", "60", "x")]
    assert [len(one["rounds"]) for one in pages] == [20, 20, 5, 0, 20]
    assert [(one["before"], one["next"]) for one in pages[:3]] == [(None, 20), (0, 40), (20, None)]
    assert pages[1]["rounds"][0]["round_index"] == 24
    assert pages[0]["round_chart"]["series"][0]["values"] == list(range(45))
    assert "/learning?&amp;first=20" in render(tmp_path, learning.PAGE, pages[0])


def test_figures_of_the_training_at_hand_are_drawn_over_its_rounds(tmp_path: Path) -> None:
    def close(place: int, figures: Mapping[str, float], run: str = "new", phase: int = 1) -> RecordRound:
        return RecordRound(run, place, "fedavg", ("a",), 0, place, phase=phase, figures=figures)

    several = {f"figure{place}": float(place) for place in range(9)}
    rounds = [close(1, {"change": 9.0}, "old")]
    for place in range(2, 6):
        varying = {name: value + place for name, value in several.items()}
        rounds += [close(place, {"change": 0.0}, phase=0)]
        rounds += [close(place, {"change": 100.0**-place, "gamma": 2.0, **varying})]
    put(tmp_path, *rounds, close(6, {"change": 0.1}), close(6, {}, phase=0))
    found = read(tmp_path)
    charts = found["convergence"]
    assert [one["name"] for one in charts] == ["change", "figure0", "figure1", "figure2"]
    assert charts[0]["chart"]["series"][0]["values"] == [1e-4, 1e-6, 1e-8, 1e-10, 0.1]
    assert [one["chart"]["is_log"] for one in charts[:2]] == [True, False]
    assert charts[0]["last"] == 0.1 and len(charts[1]["chart"]["x"]) == 4
    assert found["rounds"][1]["figures"] == {"change": 0.1}
    text = render(tmp_path, learning.PAGE, found)
    assert text.count('id="chart-figure-') == 4 and "10 %" in text


def test_of_two_rounds_no_figure_is_drawn(tmp_path: Path) -> None:
    put(tmp_path, *(RecordRound("r", place, "f", ("a",), 0, 1, figures={"change": 1.0 / place}) for place in (1, 2)))
    assert read(tmp_path)["convergence"] == []


def test_models_stand_beside_what_came_of_them(tmp_path: Path) -> None:
    watched = {"model_windows": DAY_OF_WINDOWS, "promised_alarms_per_day": 0.5}
    put(
        tmp_path,
        *map(make_model, (1, 2)),
        save_rollout({"stage": "watching", "version": 2, "canaries": ["a"]}, everywhere=1, candidate=2),
        a=make_status(2, model_alarms=4, compared_windows=400, differing_windows=6, **watched),
        b=make_status(1, model_alarms=1, **watched),
        c=make_status(1, model_alarms=2, **watched, rejected={"2": "too slow"}),
    )
    second, first = read(tmp_path)["models"]
    named = ("version", "state", "in_force", "watched_days", "alarms", "promised", "rejected")
    assert [second[name] for name in named] == [2, "canary", 1, 1.0, 4, 0.5, 1]
    assert [first[name] for name in named] == [1, "everywhere", 2, 2.0, 3, 1.0, 0]
    assert (second["differing"], second["compared_at"], first["differing"]) == (0.015, 1, None)


def test_a_release_is_shown_canary_by_canary(tmp_path: Path) -> None:
    put(
        tmp_path,
        *map(make_model, (1, 2, 3)),
        save_rollout({"stage": "watching", "version": 2, "canaries": ["a", "b"]}, everywhere=1, candidate=2, waiting=3),
        a=make_status(2, model_windows=3_600, model_alarms=1, promised_alarms_per_day=1.0),
        b=make_status(1, rejected={"2": "the golden scores differ"}),
    )
    found = read(tmp_path)["release"]
    assert (found["version_of_all"], found["waiting"], found["is_under_way"]) == (1, 3, True)
    assert "b: the golden scores differ" in found["why"]
    a, b = found["canaries"]
    assert (a["watched_s"], a["alarms"], a["rejected"]) == (3_600.0, 1, "")
    assert (b["model_version"], b["rejected"]) == (1, "the golden scores differ")


def test_bodies_of_models_are_not_read_for_the_page(tmp_path: Path) -> None:
    put(tmp_path, make_model(1, b"b" * 9_000), save_rollout({"stage": "none"}, everywhere=1))
    with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
        everywhere = learning.read_releases(store).everywhere
    assert everywhere is not None and everywhere.body == b""


@pytest.mark.parametrize(
    ("stage", "role", "buttons"),
    [
        ("watching", "admin", {"go-on", "pause", "stop"}),
        ("paused", "admin", {"go-on", "stop"}),
        ("everywhere", "admin", {"release"}),
        ("watching", "operator", set()),
        ("none", "viewer", set()),
    ],
)
def test_buttons_are_for_an_admin_and_ask_for_the_password(
    tmp_path: Path, stage: str, role: Any, buttons: set[str]
) -> None:
    put(tmp_path, *map(make_model, (1, 2)), save_rollout({"stage": stage, "version": 2}, everywhere=1, candidate=2))
    text = render(tmp_path, learning.PAGE, read(tmp_path), role)
    assert {one for one in BUTTONS if f'action="/orders/{one}"' in text} == buttons
    assert text.count('name="password"') == len(buttons)
    assert all(BUTTONS[one].role == "admin" and BUTTONS[one].asks_again for one in buttons)


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ({"to": "all", "version": "8"}, {"gateways": [], "share": 1.0, "to_all": True, "version": 8}),
        ({"to": "5", "version": "7"}, {"gateways": [], "share": 0.05, "to_all": False, "version": 7}),
    ],
)
def test_a_release_becomes_the_order_that_the_command_gives(form: dict[str, str], body: dict[str, Any]) -> None:
    assert BUTTONS["release"].read(form) == body


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({}, "to: expected all"),
        ({"to": "11"}, "to: expected all"),
        ({"to": "all", "version": "-1"}, "version: expected the number"),
        ({"to": "all", "version": "٣"}, "version: expected the number"),
        ({"to": "all", "version": "9" * 19}, "version: expected the number"),
    ],
)
def test_a_release_that_says_something_else_is_none(form: dict[str, str], problem: str) -> None:
    with pytest.raises(FormError, match=problem):
        BUTTONS["release"].read(form)


def test_spent_privacy_stands_beside_its_budget(tmp_path: Path) -> None:
    put(tmp_path, a=make_status(0, privacy_epsilon=0.5), b=make_status(0, privacy_epsilon=2.0), c=make_status(0))
    found = read(tmp_path)["privacy"]
    assert (found["budget"], found["count"]) == (None, 2)
    assert [one["gateway"] for one in found["spent"]] == ["b", "a"]
    settings = {"loss": "logistic", "components": 0, "privacy": {"epsilon": 4.0, "noise_multiplier": 9.0, "clip": 1.0}}
    budgeted = read(tmp_path, {"algorithm": {"name": "fedavg", "settings": settings}})
    assert budgeted["privacy"]["budget"] == 4.0
    assert "50 %" in render(tmp_path, learning.PAGE, budgeted)


@pytest.mark.soak
def test_what_a_gateway_wrote_is_text_and_no_markup(tmp_path: Path) -> None:
    documents = []
    for place, text in enumerate(("plain", (EVIL * 60)[:4_096])):
        folder = tmp_path / str(place)
        folder.mkdir()
        put(
            folder,
            make_model(2),
            RecordRound("run", 5, text[:100], ("a",), 0, 70),
            save_rollout({"stage": "paused", "version": 2, "canaries": ["a"], "why": text}, everywhere=2, candidate=2),
            a=make_status(1, refusal=text, training_remarks=text, rejected={"2": text}),
        )
        with closing(Store(folder / "aggregator.db")) as store:
            store.order("release", {"share": text, "who": text})
        documents.append(render(folder, learning.PAGE, read(folder)))
    plain, evil = (Markup(one).elements for one in documents)
    assert plain == evil


def test_an_empty_store_has_a_page(tmp_path: Path) -> None:
    put(tmp_path)
    text = render(tmp_path, learning.PAGE, read(tmp_path))
    check_headings(text)
    assert 'action="/orders/' not in text
