"""After an outage: everything arrives, once, whoever was restarted meanwhile and whatever the broker claims.

Method: the machines of a site with what their stores would hold. A broker that acknowledges and throws away is a link
that loses everything without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedgate.cloud_aggregator.events import Durable, RecordAlarm
from fedgate.config.protocol.messages import Alarm
from fedgate.gateway_agent.events import UPDATE_PRIORITY, Connection
from fedgate.models.time_units import NS
from tests.support.agents import clear_fault, raise_fault
from tests.support.sites import Site, aggregator_settings, gateway_settings

LIMITS = {"limits": {"max_payload_bytes": 1_024}}
NAMES = ("north", "south")


def all_restarted(made: Site) -> None:
    for who in ("cloud", *NAMES):
        made.restart(who)


RESTARTS: dict[str, Callable[[Site], None]] = {
    "gateway": lambda site: site.restart("north"),
    "aggregator": lambda site: site.restart("cloud"),
    "broker": lambda site: site.connect_all(),
    "all three": all_restarted,
}


def site() -> Site:
    chosen = {"algorithm": {"name": "fedavg"}, "rounds": {"quorum": 2, "per_release": 1, "rest_s": 1e6}, **LIMITS}
    made = Site(aggregator_settings(**chosen), [gateway_settings(name, **LIMITS) for name in NAMES])
    made.connect_all()
    return made


@pytest.mark.soak
@pytest.mark.parametrize("restarted", RESTARTS)
@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_a_transfer_goes_on_whoever_is_restarted_in_its_middle(restarted: str, arrived: int) -> None:
    """Some chunks of an update arrive, the rest is lost with the restart; it is counted once all the same."""
    made = site()
    made.commission()
    while not any(item.priority == UPDATE_PRIORITY for item in made.agents["north"].outbox.items.values()):
        made.deliver() if made.on_the_way else made.train()
    (update,) = (item for item in made.agents["north"].outbox.items.values() if item.priority == UPDATE_PRIORITY)
    assert len(update.payloads) >= 2
    for _ in range(arrived):
        index = next(i for i, message in enumerate(made.on_the_way) if message[1] == update.topic)
        made.on_the_way.insert(0, made.on_the_way.pop(index))
        made.deliver()
    made.on_the_way.clear()
    RESTARTS[restarted](made)
    made.run(lambda: made.settled() and bool(made.cloud_shelf.rounds))
    (closed,) = made.cloud_shelf.rounds
    assert sorted(closed.gateways) == list(NAMES)


def told(made: Site) -> list[Alarm]:
    found: list[Alarm] = []

    def commit(effects: list[Durable]) -> None:
        found.extend(effect.alarm for effect in effects if isinstance(effect, RecordAlarm))

    made.commits.append(commit)
    return found


def raise_alarms(made: Site, count: int) -> list[str]:
    """Raise and clear so many faults, one a minute, while the broker throws everything away; return their items."""
    items: list[str] = []
    for number in range(count):
        for act in ("raised", "cleared"):
            state = made.agents["north"]
            if act == "raised":
                state, effects = raise_fault(state, "faulty-load", "stuck", made.now_ns)
            else:
                state, effects = clear_fault(state, "faulty-load", made.now_ns)
            made.agents["north"] = state
            made.shelves["north"].commit(effects)
            made.tick(30.0)
            made.on_the_way.clear()
        if number == count // 2:  # the power goes, too
            made.restart("north")
            made.on_the_way.clear()
    items += list(made.agents["north"].outbox.items)
    return items


@pytest.mark.soak
def test_a_broker_that_acknowledges_and_throws_away_loses_nothing() -> None:
    made = site()
    made.flow()
    found = told(made)
    items = raise_alarms(made, 30)
    assert not found and len(items) == 60  # the word of the broker took nothing out
    began_ns = made.now_ns
    made.run(made.settled)
    assert sorted({alarm.item for alarm in found}) == sorted(items)
    assert made.now_ns - began_ns < 400 * NS
    onsets_ns = [alarm.onset_ns for alarm in found if alarm.state == "raised"]
    assert max(onsets_ns) < began_ns and len(set(onsets_ns)) == 30  # the times are those of the outage


def test_what_gathered_leaves_in_the_order_in_which_it_happened() -> None:
    made = site()
    made.flow()
    found = told(made)
    made.step_agent("north", Connection(False))
    raise_alarms(made, 40)
    made.connect("north")
    made.run(made.settled)
    first = list(dict.fromkeys(alarm.item for alarm in found))
    assert len(first) == 80
    times_ns = [next(alarm.t_ns for alarm in found if alarm.item == item) for item in first]
    assert times_ns == sorted(times_ns)


@pytest.mark.parametrize("name", ["north", "south", "east", "west"])
def test_a_line_that_breaks_every_few_seconds_carries_what_waits_all_the_same(name: str) -> None:
    """Each connection is shorter than the spread of a fleet after an outage."""
    made = Site(aggregator_settings(), [gateway_settings(name, exchange={"spread_s": 60.0})])
    made.connect("cloud")
    made.agents[name], raised = raise_fault(made.agents[name], "silent-deck", "no word", made.now_ns)
    assert raised and not made.settled()
    for _ in range(7):
        made.connect(name)
        for _ in range(2):
            made.tick()
            made.flow()
        made.step_agent(name, Connection(False))
    assert made.settled()
