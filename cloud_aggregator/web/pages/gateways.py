"""The list of gateways, by state and name, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.web.pages.alarm_list import list_asking
from fedgate.cloud_aggregator.web.pages.overview import count_gateways, read_gateways, read_service
from fedgate.cloud_aggregator.web.pages.page import Context, Page, check_state, list_places, read_first
from fedgate.config.web.charts import Facts

AT_ONCE = 100
ANY = "any"
STATES = ("online", "offline", "silent", "never seen", "revoked", "unknown")


def read_list(context: Context, address: Mapping[str, str]) -> Facts:
    """Return the gateways of a state whose names have a text in them, those with something wrong first; raises
    `NotThereError` for a state that there is not.
    """
    context.alarms.read(context.store, context.now_ns)
    gateways = read_gateways(context, list_asking(context.alarms.groups), service=read_service(context))
    state, text, first = address.get("state") or ANY, address.get("name", ""), read_first(address)
    check_state(state, (ANY, *STATES))
    chosen = [one for one in gateways if state in (ANY, one["state"]) and text.lower() in one["gateway"].lower()]
    return {
        "state": state,
        "name": text,
        "states": (ANY, *STATES),
        "counts": count_gateways(gateways),
        **list_places(len(chosen), first, AT_ONCE),
        "gateways": chosen[first : first + AT_ONCE],
    }


PAGE = Page("/gateways", "gateways.html", "Gateways", read_list)
