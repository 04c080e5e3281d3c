"""The list of alarms, by state and gateway, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.web.pages.alarm_list import count_states
from fedgate.cloud_aggregator.web.pages.page import Context, Page, list_places, read_first
from fedgate.config.web.charts import Facts

AT_ONCE = 100
ANY, OPEN = "any", "open"


def read_alarms(context: Context, address: Mapping[str, str]) -> Facts:
    """Return the alarms of a state (`open`: all that ask for somebody; `any`) and a gateway, the worst first where they
    are open, else the newest.
    """
    alarms = context.alarms.read(context.store, context.now_ns)
    state, gateway, first = address.get("state", OPEN), address.get("gateway", ""), read_first(address)
    chosen = [
        one
        for one in alarms
        if (state == ANY or (one.state != "normal" if state == OPEN else one.state == state))
        and gateway in ("", one.gateway)
    ]
    chosen.sort(key=lambda one: one.rank if state == OPEN else (0, 0, -one.begun_ns))
    return {
        "state": state,
        "gateway": gateway,
        "counts": count_states(alarms),
        **list_places(len(chosen), first, AT_ONCE),
        "alarms": [one._asdict() for one in chosen[first : first + AT_ONCE]],
    }


PAGE = Page("/alarms", "alarms.html", "Alarms", read_alarms)
