"""The list of gateways, by state and name, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.web.pages.overview import count_gateways, read_gateways, read_service
from fedgate.cloud_aggregator.web.pages.page import Context, Page, list_places, read_first
from fedgate.config.web.charts import Facts

AT_ONCE = 100
ANY = "any"


def read_list(context: Context, address: Mapping[str, str]) -> Facts:
    """Return the gateways of a state whose names have a text in them, those with something wrong first."""
    alarms = context.alarms.read(context.store, context.now_ns)
    gateways = read_gateways(context, alarms, service=read_service(context))
    state, text, first = address.get("state", ANY), address.get("name", ""), read_first(address)
    chosen = [one for one in gateways if state in (ANY, one["state"]) and text.lower() in one["gateway"].lower()]
    return {
        "state": state,
        "name": text,
        "counts": count_gateways(gateways),
        **list_places(len(chosen), first, AT_ONCE),
        "gateways": chosen[first : first + AT_ONCE],
    }


PAGE = Page("/gateways", "gateways.html", "Gateways", read_list)
