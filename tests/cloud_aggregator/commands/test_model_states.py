"""`cloud-aggregator models` says of each model how it stands, and when it was released only of those that were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.events import RecordModel, SaveRollout
from fedgate.cloud_aggregator.storage.store import Store
from tests.cloud_aggregator.releases.test_staged_release import fleet
from tests.cloud_aggregator.releases.test_stopped_models import BAD, OTHER, trained
from tests.support.fleets import Fleet

GIVEN = ("canary", "released", "stopped")


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[int, tuple[str, list[str]]]:
    """Return by version the state and which of the times are given."""
    settings = folder / "aggregator.toml"
    settings.write_text(
        '[aggregator]\nsite = "bridge"\n[features]\nrate_hz = 20.0\nwindow_s = 1.0\nchannels = ["load"]\n'
        'steps = [{ kind = "level" }]\n'
    )
    capsys.readouterr()
    assert main(["models", "-c", str(settings), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {row["version"]: (row["state"], [name for name in GIVEN if row[name]]) for row in rows}


def with_store(made: Fleet, store: Store) -> None:
    """Have a real store keep what the fleet's stand-in is given from now on."""
    first = [RecordModel(*one) for one in made.staged.models.values()]
    commit = made.staged.commit

    def both(effects: Iterable[Any]) -> None:
        held = list(effects)
        commit(held)
        store.commit([effect for effect in held if isinstance(effect, RecordModel | SaveRollout)])

    assert made.staged.rollout is not None
    store.commit([*first, SaveRollout(made.staged.rollout, made.now_ns)])
    made.staged.commit = both  # type: ignore[method-assign]  # to be there at every commit


def test_each_model_is_shown_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "aggregator.db")
    made = fleet(canary=0.5)
    with_store(made, store)
    trained(made, BAD)
    of_all = {1: ("everywhere", ["released"])}
    assert shown(tmp_path, capsys) == {**of_all, 2: ("waits", [])}
    assert made.order("release", share=0.5)[1] == ""
    assert shown(tmp_path, capsys) == {**of_all, 2: ("canary", ["canary"])}
    trained(made, OTHER)
    assert shown(tmp_path, capsys)[3] == ("waits", [])
    assert made.order("stop")[1] == ""
    stopped = {2: ("stopped", ["canary", "stopped"]), 3: ("waits", []), 4: ("given back", ["canary"])}
    assert shown(tmp_path, capsys) == {**of_all, **stopped}
    assert made.order("release", share=1.0, to_all=True)[1] == ""
    after = shown(tmp_path, capsys)
    assert after[1] == ("replaced", ["released"]) and after[3] == ("not released", [])
    assert after[2] == stopped[2] and after[4] == stopped[4] and after[5] == ("everywhere", ["released"])
    store.close()
