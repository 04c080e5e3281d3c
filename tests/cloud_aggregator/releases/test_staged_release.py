"""Staged releases: a model goes to a few gateways first, and what they tell decides whether others ever see it.

Goal: a bad model reaches canaries alone, and those are themselves again without anyone's help; nothing of that is
forgotten or done twice in a restart. Both machines are real, also the models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.commands.release import share_of
from fedgate.cloud_aggregator.events import RecordGateway, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases import rollout
from fedgate.cloud_aggregator.releases.releases import Rollout
from fedgate.cloud_aggregator.releases.rollout import Report, is_alarming, judge_canaries
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.transfer import describe
from fedgate.config.settings.release import ReleaseTable
from fedgate.models.alarms.false_alarm_test import BLOCK_WINDOWS
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import SPOILED, Made, signed
from tests.models.test_graph_bytes import SPOILED as SPOILED_GRAPHS
from tests.support.fleets import Fleet
from tests.support.sites import T0_NS, topic
from tests.support.soak import crossed, some
from tests.support.watchers import CALM, DEVIATION, SENSITIVE, model
from tests.support.watchers import LEVEL as LOOKS_AT_LEVEL

NAMES = ("east", "north", "south", "west")
WATCH_S = 500.0


def fleet(*names: str, **release: Any) -> Fleet:
    """Return a commissioned fleet where all have the calm model, as version 1."""
    made = Fleet(*(names or NAMES), **{"mode": "manual", "watch_s": WATCH_S, **release})
    made.connect_all()
    made.commission()
    made.told()
    assert made.order("release", CALM, share=1.0, to_all=True)[1] == ""
    made.told()
    assert set(made.versions().values()) == {1}
    return made


def restarting(made: Fleet) -> None:
    """Cut the power of all; for how long they have watched is stored every 240 s of it."""
    made.tick(900.0)
    for who in ("cloud", *made.agents):
        made.restart(who)


def nothing(made: Fleet) -> None:
    """Leave everything running."""


@pytest.mark.soak
@pytest.mark.parametrize("between", some([restarting, nothing]))
def test_a_good_model_goes_to_canaries_first_and_then_to_all(between: Callable[[Fleet], None]) -> None:
    made = fleet()
    text, problem = made.order("release", model(7, LOOKS_AT_LEVEL), share=0.5)
    assert (text, problem) == (f"model 2 is released to {', '.join(made.stage.canaries)}", "")
    canaries, others = set(made.stage.canaries), set(NAMES) - set(made.stage.canaries)
    assert len(canaries) == 2
    between(made)
    made.told()
    for _ in range(5):
        assert {name for name, version in made.versions().items() if version == 2} == canaries
        assert {made.versions()[name] for name in others} == {1} and not any(made.own(name) for name in others)
        made.watch(256)
        between(made)
        made.told()
        if made.stage.stage == "everywhere":
            break
    assert made.stage.stage == "everywhere" and set(made.versions().values()) == {2}
    assert not any(made.own(name) for name in NAMES)
    between(made)
    made.told()
    assert set(made.versions().values()) == {2} and not any(one.context.refusal for one in made.agents.values())


def forbidden() -> Made:
    body = SPOILED_GRAPHS["operator"][0]
    return signed(CALM[0], version=7, model=describe(body, 122_880)), body


def golden() -> Made:
    manifest, body = SPOILED["golden pair"][0]()
    return signed(manifest, version=7), body


BAD: dict[str, tuple[Callable[[], Made], float]] = {
    "alarms constantly": (lambda: model(7, LOOKS_AT_LEVEL), 4.0),
    "forbidden operator": (forbidden, 0.0),
    "golden pair": (golden, 0.0),
}


@pytest.mark.soak
@pytest.mark.parametrize(("fault", "between"), crossed([*BAD], [nothing, restarting]))
def test_a_bad_model_reaches_canaries_alone_and_they_get_back_what_all_have(
    fault: str, between: Callable[[Fleet], None]
) -> None:
    made, (bad, shift) = fleet(), BAD[fault]
    digest = bad()[0].model.digest
    made.order("release", bad(), gateways=["south"])
    for _ in range(8):
        made.told()
        between(made)
        made.watch(256, shift)
        assert made.stage.stage in ("watching", "stopped")
        if made.stage.stage == "stopped":
            break
    assert made.stage.stage == "stopped" and "1 of 1 canaries rejected it; south: model 2 " in made.stage.why
    made.told()
    assert made.versions() == {"east": 1, "north": 1, "south": 3, "west": 1}  # 3 is 1 under a new version
    south, east = made.agents["south"].deployment.manifest, made.agents["east"].deployment.manifest
    assert south is not None and east is not None and south.model == east.model
    assert not any(digest in one.downloads.receiver.incoming for one in made.agents.values())
    assert [name for name in NAMES if made.own(name)] == ["south"]
    between(made)
    made.told()
    assert made.versions()["south"] == 3 and not made.agents["south"].context.refusal
    made.order("release", model(9, DEVIATION), share=1.0, to_all=True)
    made.told()
    assert set(made.versions().values()) == {4} and not any(made.own(name) for name in NAMES)


@pytest.mark.soak
def test_canaries_that_are_away_are_waited_for_and_then_the_operator_decides() -> None:
    made = fleet(patience_s=1_000.0)
    made.connect("south", up=False)
    made.publish(topic("south", "status", "agent"), Status(state="offline").to_bytes(), retain=True)
    made.order("release", SENSITIVE, gateways=["north", "south"])
    made.watch(600, 0.0, "north")
    assert made.cloud.releases.rollout.stage == "watching" and made.versions()["north"] == 2
    said = rollout.judge_canaries(made.stage, _report(made), made.cloud_settings.release, made.now_ns)
    assert said[0] == "wait" and "south have not watched with it" in said[1] and "offline or silent: south" in said[1]
    made.tick(1_000.0)
    assert made.stage.stage == "paused" and "south have not watched with it" in made.stage.why
    made.restart("cloud")
    made.watch(600, 0.0, "north")
    assert made.stage.stage == "paused" and made.versions()["east"] == 1
    assert made.order("pause")[1].startswith("the release of model 2 is paused already")
    assert made.order("go-on") == ("release of model 2 goes on to all gateways", "")
    made.told()
    assert {**made.versions(), "south": 2} == dict.fromkeys(NAMES, 2)
    made.connect("south")
    made.told()
    assert made.versions()["south"] == 2


def _report(made: Fleet) -> Report:
    base = made.cloud.releases.manifest.version if made.cloud.releases.manifest else 0
    return rollout.report(made.stage, made.cloud.access.gateways, base, made.cloud_settings.release, 1.0)


@pytest.mark.soak
def test_the_operator_may_stop_and_an_old_version_number_never_comes_back() -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.told()
    assert made.order("release", SENSITIVE, gateways=["north"])[1].startswith("the release of model 2 is watching")
    assert made.order("stop") == ("release of model 2 is stopped", "")
    made.told()
    assert made.versions() == {"east": 1, "north": 1, "south": 3, "west": 1}
    assert made.order("stop")[1].startswith("no release is under way (the last one: stopped)")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"share": 0.1}, "no model waits to be released"),
        ({"share": 0.1, "version": 99}, "version 99 given, and no such model is stored"),
        ({"gateways": ["nobody"]}, "nobody cannot be canaries"),
        ({"share": 0.0}, "share 0.0 given"),
    ],
)
def test_an_order_that_makes_no_sense_says_what_to_do(body: dict[str, Any], words: str) -> None:
    assert words in fleet("east").order("release", **body)[1]


@pytest.mark.soak
def test_a_site_of_one_gateway_is_its_own_canary() -> None:
    made = fleet("east")
    made.order("release", SENSITIVE, share=0.1)
    assert made.stage.canaries == ("east",)
    made.told()
    made.watch(600)
    assert made.stage.stage == "everywhere" and made.versions() == {"east": 2} and not made.own("east")


@pytest.mark.soak
def test_who_joins_meanwhile_gets_what_all_have() -> None:
    made = Fleet(*NAMES, mode="manual", watch_s=WATCH_S)
    made.connect_all()
    assert made.order("release", CALM, share=0.3) == (
        "model 1 is released to nobody yet, for no gateway with a whole baseline is online",
        "",
    )
    for index, name in enumerate(NAMES[:2]):
        made.watch(60 + index, 0.0, name)
    assert len(made.stage.canaries) == 1
    made.commission()
    made.watch(600)
    assert made.stage.stage == "everywhere" and set(made.versions().values()) == {1}
    made.order("release", SENSITIVE, gateways=["east"])
    made.told()
    made.restart("west")
    made.told()
    assert made.versions() == {"east": 2, "north": 1, "south": 1, "west": 1}


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["all", "staged", "manual"])
def test_what_the_training_makes_goes_where_the_settings_say(mode: str) -> None:
    rounds = {"quorum": 3, "rest_s": 1e6}
    made = Fleet("east", "north", "south", mode=mode, watch_s=WATCH_S, rounds=rounds)
    made.connect_all()
    made.commission()
    made.run(lambda: bool(made.staged.models))
    made.told()
    having = sum(version == 1 for version in made.versions().values())
    assert having == {"all": 3, "staged": 1, "manual": 0}[mode]
    assert (
        len(made.staged.rounds) > 0
        and made.stage.stage == {"all": "none", "staged": "watching", "manual": "none"}[mode]
    )
    made.restart("cloud")
    if mode == "manual":
        assert made.cloud.releases.waiting is not None
        assert made.order("release", share=1.0, to_all=True)[1] == ""
    if mode == "staged":
        made.watch(600)
    made.told()
    assert set(made.versions().values()) == {1}


def test_alarms_of_canaries_stop_a_release_where_the_others_raise_fewer() -> None:
    table = ReleaseTable(mode="staged")
    stage = Rollout("watching", 2, canaries=("a", "b"), share=0.5, since_ns=T0_NS)

    def gateways(canary_alarms: int, other_alarms: int) -> dict[str, Status]:
        days = 10 * 86_400
        common: dict[str, Any] = {"state": "online", "promised_alarms_per_day": 0.1, "model_windows": days}
        canary = Status(**common, model_version=2, model_alarms=canary_alarms)
        other = Status(**common, model_version=1, model_alarms=other_alarms)
        return {"a": canary, "b": canary, "c": other, "d": other}

    def said(canary_alarms: int, other_alarms: int) -> str:
        told = rollout.report(stage, gateways(canary_alarms, other_alarms), 1, table, 1.0)
        return judge_canaries(stage, told, table, T0_NS + NS)[0]

    assert said(1, 1) == "go on"  # 2 in 20 days, as promised
    assert said(20, 1) == "stop"  # 40, and 6 are within the limit
    assert said(20, 20) == "go on"  # a storm, which all have seen


@pytest.mark.parametrize("lie", [0, 10**6, 2**63 - 1])
@pytest.mark.parametrize("windows", [0, 10 * 86_400, 2**63 - 1])
@pytest.mark.parametrize("promise", [0.0, 0.1, 1e300])
def test_what_one_gateway_says_decides_no_release(lie: int, windows: int, promise: float) -> None:
    """Of nine canaries and of the gateways beside them one says anything: the verdict is that of the honest ones."""
    table, names = ReleaseTable(mode="staged"), tuple("abcdefghi")
    stage = Rollout("watching", 2, canaries=names, share=0.5, since_ns=T0_NS)
    common: dict[str, Any] = {"state": "online", "model_windows": 10 * 86_400, "promised_alarms_per_day": 0.1}
    says = {"model_alarms": lie, "model_windows": windows, "promised_alarms_per_day": promise}

    def said(canary_alarms: int, liars: tuple[str, ...]) -> bool:
        canary, other = (Status(**common, model_version=version) for version in (2, 1))
        made = {name: canary.model_copy(update={"model_alarms": canary_alarms}) for name in names}
        made |= {f"o{number}": other.model_copy(update={"model_alarms": 1}) for number in range(9)}
        made |= {name: made[name].model_copy(update=says) for name in liars}
        return is_alarming(rollout.report(stage, made, 1, table, 1.0))

    for liars in ((), ("a",), ("o0",), ("a", "o0")):
        assert not said(1, liars) and said(20, liars)


def test_what_one_gateway_beside_the_canaries_says_is_not_what_is_usual() -> None:
    table, names = ReleaseTable(mode="staged"), tuple("abcde")
    stage = Rollout("watching", 2, canaries=names, share=0.5, since_ns=T0_NS)
    common: dict[str, Any] = {"state": "online", "model_windows": 10 * 86_400, "promised_alarms_per_day": 0.1}
    canaries = {name: Status(**common, model_version=2, model_alarms=20) for name in names}
    liar = Status(**common | {"model_windows": 1}, model_version=1, model_alarms=2**63 - 1)
    honest = Status(**common, model_version=1, model_alarms=1)
    for others in ({"o": liar}, {"o": liar, "p": honest}, {"o": honest, "p": honest}):
        assert is_alarming(rollout.report(stage, canaries | others, 1, table, 1.0))
    storm = {name: honest.model_copy(update={"model_alarms": 20}) for name in "op"}
    assert not is_alarming(rollout.report(stage, canaries | storm, 1, table, 1.0))


def test_one_of_three_canaries_rejects_for_itself() -> None:
    table, stage = ReleaseTable(mode="staged"), Rollout("watching", 2, canaries=("a", "b", "c"), since_ns=T0_NS)
    well = Status(state="online", model_version=2, model_windows=10**6, promised_alarms_per_day=0.1)
    refusing = Status(state="online", model_version=1, rejected={"2": "no"})
    for said, word in (((refusing, well, well), "go on"), ((refusing, refusing, well), "stop")):
        told = rollout.report(stage, dict(zip("abc", said, strict=True)), 1, table, 1.0)
        assert judge_canaries(stage, told, table, T0_NS + NS)[0] == word


def test_a_few_windows_have_shown_nothing_however_short_the_watch_is() -> None:
    table, stage = ReleaseTable(watch_s=1.0), Rollout("watching", 2, canaries=("a",), since_ns=T0_NS)
    for windows, word in ((BLOCK_WINDOWS - 1, "wait"), (BLOCK_WINDOWS, "go on")):
        canary = Status(state="online", model_version=2, model_windows=windows, promised_alarms_per_day=0.1)
        told = rollout.report(stage, {"a": canary}, 1, table, 1.0)
        assert judge_canaries(stage, told, table, T0_NS + NS)[0] == word


def test_few_alarms_are_no_evidence_and_all_looks_together_keep_the_level() -> None:
    assert not is_alarming(Report({}, {}, (), 2, 0.0, 0.0))
    assert is_alarming(Report({}, {}, (), 3, 0.0, 0.0))
    assert not is_alarming(Report({}, {}, (), 6, 3.0, 0.0))


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.25", 0.25), ("100%", 1.0)])
def test_a_share_is_read(text: str, value: float) -> None:
    assert share_of(text) == pytest.approx(value)


@pytest.mark.soak
def test_the_command_shows_how_a_release_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.told()
    made.watch(128)
    path = tmp_path / "aggregator.toml"
    path.write_text(
        '[aggregator]\nsite = "bridge"\n[features]\nrate_hz = 20.0\nwindow_s = 1.0\nchannels = ["load"]\n'
        'steps = [{ kind = "level" }]\n[release]\nmode = "manual"\n'
    )
    store = Store(tmp_path / "aggregator.db")
    models = [RecordModel(*one) for one in made.staged.models.values()]
    known = [RecordGateway(name, one, T0_NS) for name, one in made.staged.gateways.items()]
    assert made.staged.rollout is not None
    store.commit([*models, *known, SaveRollout(made.staged.rollout, T0_NS)])
    assert main(["release", "-c", str(path)]) == 0
    said = capsys.readouterr().out
    assert "all gateways: model 1" in said and "release of model 2: watching" in said and "south" in said
    assert main(["release", "-c", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["stage"] == "watching" and shown["canaries"][0]["watched_h"] > 0
    assert main(["release", "-c", str(path), "--version", "1"]) == 2
    assert "say to whom" in capsys.readouterr().err
    store.close()
