"""The list of alarms, by state and gateway, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.web.pages.alarm_list import OPEN_STATES, count_states, list_worst
from fedgate.cloud_aggregator.web.pages.page import Context, Page, check_state, list_places, read_first
from fedgate.config.web.charts import Facts

AT_ONCE = 100
ANY, OPEN = "any", "open"


def read_alarms(context: Context, address: Mapping[str, str]) -> Facts:
    """Return the alarms of a state (`open`: all that ask for somebody; `any`) and a gateway, the worst first where they
    are open, else the newest; raises `NotThereError` for a state that there is not.
    """
    alarms = context.alarms.read(context.store, context.now_ns)
    groups = context.alarms.groups
    state, gateway, first = address.get("state") or OPEN, address.get("gateway", ""), read_first(address)
    check_state(state, (OPEN, ANY, *OPEN_STATES, "normal"))
    found = list_worst(groups) if state == OPEN else reversed(alarms)
    chosen = [one for one in found if state in (OPEN, ANY, one.state) and gateway in ("", one.gateway)]
    return {
        "state": state,
        "gateway": gateway,
        "counts": count_states(groups),
        **list_places(len(chosen), first, AT_ONCE),
        "alarms": context.alarms.show(context.store, chosen[first : first + AT_ONCE]),
    }


PAGE = Page("/alarms", "alarms.html", "Alarms", read_alarms)
