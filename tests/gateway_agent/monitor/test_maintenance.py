"""Goal: a gateway learns nothing of what it measures during maintenance that its site has signed, and judges it all
the same; what somebody else says, or said before, changes nothing.

Method: the aggregator's own words at a gateway's machine, with windows before, within and after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.alarms.maintenance import AGAIN_S
from fedgate.cloud_aggregator.context import sign_message
from fedgate.cloud_aggregator.events import Connection, Ordered, Publish, Tick
from fedgate.config.protocol.messages import LARGEST, MaintenanceWindow, MaintenanceWindows
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.monitor.maintenance import MAINTENANCE, forget_maintenance
from fedgate.gateway_agent.pipeline import decision
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import DAY_NS, NS
from tests.cloud_aggregator.alarms.test_fleet import site
from tests.cloud_aggregator.test_aggregator_machine import after as cloud_after
from tests.cloud_aggregator.test_aggregator_machine import published
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support.agents import ME, after, changed, heard, kinds
from tests.support.sites import KEY, SITE, T0_NS, WINDOWS, Shelf, agent, frame, gateway_settings, samples
from tests.support.watchers import CALM, FRAME, SENSITIVE, Gateway

STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
HOP_S = gateway_settings().features.hop_s
HALF_S = WINDOWS // 2 * HOP_S


def announced(*times: tuple[float, float], at_s: float = 1.0, whose: str = ME, **how: Any) -> bytes:
    windows = tuple(
        MaintenanceWindow(gateway=whose, from_ns=T0_NS + round(begin * NS), to_ns=T0_NS + round(end * NS))
        for begin, end in times
    )
    message = MaintenanceWindows(changed_ns=T0_NS + round(at_s * NS), windows=windows)
    return sign_message(message, how.get("key", KEY), how.get("audience", f"{SITE}/all"), T0_NS).to_bytes()


def told(state: State, payload: bytes) -> State:
    return after(state, heard("maintenance-windows", "current", payload, "all"))[0]


def measured(state: State) -> State:
    return after(state, heard("sample", "deck", frame(samples(1, WINDOWS))))[0]


def ends_s(state: State) -> list[float]:
    return [((seen.end_ns or 0) - T0_NS) / NS for seen in state.monitor.pipeline.baseline]


@pytest.mark.parametrize("whose", [ME, "all"])
def test_windows_of_maintenance_are_not_of_the_baseline(whose: str) -> None:
    everything = measured(agent(gateway_settings(), Shelf()))
    assert everything.monitor.pipeline.commissioned
    state = told(agent(gateway_settings(), Shelf()), announced((HALF_S, HALF_S + 3 * HOP_S), whose=whose))
    state = measured(state)
    gone = sorted(set(ends_s(everything)) - set(ends_s(state)))
    window_s = state.monitor.pipeline.spec.window_s
    assert gone == [end for end in ends_s(everything) if end > HALF_S and end - window_s < HALF_S + 3 * HOP_S]
    assert len(gone) >= 3 and state.monitor.windows == everything.monitor.windows
    assert not state.monitor.pipeline.commissioned


def test_a_window_that_is_kept_out_is_not_stored_either() -> None:
    state = told(agent(gateway_settings(), Shelf()), announced((0, WINDOWS * HOP_S + 60)))
    state, effects = after(state, heard("sample", "deck", frame(samples(1, WINDOWS))))
    assert ends_s(state) == [] and not kinds(effects, Keep) and state.monitor.windows > 0


def test_the_level_does_not_drift_with_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = list[bool]()

    def judge(*given: Any, is_calm: bool) -> Any:
        calm.append(is_calm)
        return real(*given, is_calm=is_calm)

    real, state = decision.judge_window, in_force()
    monkeypatch.setattr(walk, "judge_window", judge)
    begin_s = (WINDOWS + 3) * HOP_S
    state = told(state, announced((begin_s, begin_s + 3 * HOP_S)))
    after(state, heard("sample", "deck", frame(samples(2, 10), WINDOWS * HOP_S)))
    assert calm.count(False) >= 3 and calm[0] and calm[-1]


def test_the_model_on_trial_beside_another_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = list[bool]()

    def judge(*given: Any, is_calm: bool) -> Any:
        calm.append(is_calm)
        return real(*given, is_calm=is_calm)

    real, gateway = decision.judge_window, Gateway(CALM, SENSITIVE)
    assert gateway.state.deployment.trial is not None
    gateway.state = told(gateway.state, announced((0, 30 * DAY_NS / NS)))
    monkeypatch.setattr(walk, "judge_window", judge)
    gateway.watch(FRAME)
    assert len(calm) == 2 * FRAME and not any(calm)


def test_what_is_not_the_sites_word_or_an_older_one_changes_nothing() -> None:
    state = told(agent(gateway_settings(), Shelf()), announced((10, 20), at_s=5))
    known = state.monitor.maintenance
    assert state.monitor.pipeline.maintenance == ((T0_NS + 10 * NS, T0_NS + 20 * NS),)
    for payload in (
        announced((10, 30), at_s=6, key=STRANGER),
        announced((10, 30), at_s=6, audience=f"{SITE}/{ME}"),
        announced((10, 30), at_s=4),
        b"{}",
        announced((10, 20), at_s=5),
    ):
        assert told(state, payload).monitor.maintenance == known
    assert told(state, announced(at_s=6)).monitor.pipeline.maintenance == ()
    others = told(state, announced((10, 30), at_s=6, whose="south"))
    assert others.monitor.pipeline.maintenance == () and others.monitor.maintenance is not None
    longest = told(state, announced((0, 32 * DAY_NS / NS), (9, 8), at_s=6))
    assert longest.monitor.pipeline.maintenance == ()


def test_it_survives_a_restart_and_is_forgotten_with_the_key_that_signed_it() -> None:
    shelf = Shelf()
    state, effects = after(
        agent(gateway_settings(), shelf), heard("maintenance-windows", "current", announced((10, 20)), "all")
    )
    assert [one.key for one in kinds(effects, Save)] == [MAINTENANCE]
    shelf.commit(effects)
    again = agent(gateway_settings(), shelf)
    assert (
        again.monitor.maintenance == state.monitor.maintenance
        and again.monitor.pipeline.maintenance == state.monitor.pipeline.maintenance
    )
    latest = told(state, announced((10, 20), at_s=(LARGEST - T0_NS) / NS / 2))
    monitor, forgotten = forget_maintenance(latest.monitor)
    shelf.commit(forgotten)
    assert monitor.pipeline.maintenance == () and agent(gateway_settings(), shelf).monitor.maintenance is None
    assert told(changed(latest, "monitor", maintenance=None), announced((1, 2))).monitor.pipeline.maintenance != ()


def announcements(effects: list[Any]) -> list[Publish]:
    return published(effects, "maintenance-windows")


def test_the_aggregator_announces_what_is_to_come_at_once_and_after_each_connection() -> None:
    state = site(["north"])
    assert announcements(cloud_after(state, Connection(True))[1]) == []
    body: dict[str, Any] = {"action": "window", "gateway": "north", "who": "ann", "text": "why"}
    body |= {"from_s": T0_NS / NS, "to_s": T0_NS / NS + 500}
    state, effects = cloud_after(state, Ordered(1, "alarm", body), at_s=1)
    (first,) = announcements(effects)
    assert first.retain and first.topic == f"fedgate/v1/{SITE}/all/maintenance-windows/current"
    gateway = told(agent(gateway_settings(), Shelf()), first.payload)
    assert gateway.monitor.pipeline.maintenance == ((T0_NS, T0_NS + 500 * NS),)
    assert announcements(cloud_after(state, Connection(True))[1])[0].payload == first.payload
    ended = Ordered(2, "alarm", {"action": "window-end", "window": 1, "who": "ann"})
    state, effects = cloud_after(state, ended, at_s=60)
    gateway = told(gateway, announcements(effects)[0].payload)
    assert gateway.monitor.pipeline.maintenance == ((T0_NS, T0_NS + 60 * NS),)
    repeated = told(gateway, first.payload)  # by the broker
    assert repeated.monitor.maintenance == gateway.monitor.maintenance
    set_back = replace(state, context=replace(state.context, anchor_ns=state.context.anchor_ns - 30 * NS))
    _, effects = cloud_after(set_back, Ordered(3, "alarm", {**body, "to_s": T0_NS / NS + 900}), at_s=61)
    assert MaintenanceWindows.from_bytes(announcements(effects)[0].payload).changed_ns > T0_NS + 60 * NS
    ticks_s = (100.0, 101.0, 101.0 + AGAIN_S, 102.0 + AGAIN_S)  # brokers forget, and gateways refuse
    times = []
    for at_s in ticks_s:
        state, effects = cloud_after(state, Tick(), at_s=at_s)
        times += [MaintenanceWindows.from_bytes(one.payload).changed_ns - T0_NS for one in announcements(effects)]
    assert times == [60 * NS, 60 * NS]
    week = replace(state, releases=replace(state.releases, announced_week=-1))
    renewed = announcements(cloud_after(week, Tick(), at_s=60 + 8 * 86_400)[1])
    assert len(renewed) == 1 and told(gateway, renewed[0].payload).monitor.pipeline.maintenance == ()
