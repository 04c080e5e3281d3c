"""What the doctor says of the gateway's own page: whether it can be served, and whether the agent answers it."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from fedgate.config.doctor.report import Finding, failure, fit_line, ok, warning
from fedgate.config.runtime import store_lock
from fedgate.config.settings.extras import EXTRA_OF, advise_install
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET, GatewayWebTable, read_address

NEEDED = tuple(name for name, extra in EXTRA_OF.items() if extra == "web")
WITHIN_S = 3.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
SOCKET_PATH_MAX = 107  # bytes of a path in struct sockaddr_un, of Linux
RESTART = "restart the agent: systemctl restart gateway-agent"


def check_page(settings: GatewaySettings) -> Iterator[Finding]:
    """Yield how the page is, where the settings have the table [web]."""
    if settings.web is not None:
        yield _check_installed()
        yield _check_port(settings, settings.web)
        yield _check_socket(settings.gateway.store)


def _check_installed() -> Finding:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return failure("page", f"needs {', '.join(missing)}, which is not installed", advise_install(missing[0]))
    return ok("page", f"{', '.join(NEEDED)} are installed")


def _check_port(settings: GatewaySettings, web: GatewayWebTable) -> Finding:
    name, (host, port) = "page port", read_address(web.listen)
    other = f"stop it (ss -ltnp sport = :{port} shows it), or give [web] listen another port"
    try:
        socket.create_connection((host, port), timeout=WITHIN_S).close()
    except OSError:
        return _check_free(name, web.listen)
    found = _ask_page(host, port)
    if not isinstance(found, dict) or "is_live" not in found or not isinstance(found.get("store"), dict):
        return failure(name, f"another program listens at {web.listen}; expected nobody, or this gateway's page", other)
    shown = found["store"].get("gateway", settings.gateway.id)  # not there before the agent has a store
    if shown != settings.gateway.id:
        return failure(name, f"{web.listen} is the page of gateway {shown!r}; expected {settings.gateway.id!r}", other)
    return ok(name, f"the page is served at http://{web.listen}")


def _check_free(name: str, listen: str) -> Finding:
    """Return whether the page could listen there; nobody is kept from it meanwhile, as nobody listens here."""
    host, port = read_address(listen)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as error:
        advice = "give [web] listen an address of this machine and a port above 1023, such as 127.0.0.1:8471"
        return failure(name, f"the page cannot listen at {listen} ({error.strerror})", advice)
    return ok(name, f"{listen} is free; the page is not served now")


def _ask_page(host: str, port: int) -> Any:
    """Return what who listens there says of the device; None where it is nothing that a page says."""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=WITHIN_S)) as connection:
            connection.request("GET", "/api/device")
            return json.loads(connection.getresponse().read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _check_socket(store: Path) -> Finding:
    """Return whether the agent answers its page, or will once it runs."""
    name, path = "page socket", store.parent / GATEWAY_SOCKET
    if (length := len(os.fsencode(path))) > SOCKET_PATH_MAX:
        text = f"{path} has {length} bytes; expected {SOCKET_PATH_MAX} at most, more is no socket"
        return failure(name, text, "move the store to a shorter path: gateway.store")
    if not os.access(store.parent, os.R_OK | os.W_OK | os.X_OK):
        text = f"the agent makes {path.name} in {store.parent}, which this user cannot write"
        return failure(name, text, "make the folder, owned by the user of the agent, and run this as that user")
    if stat.S_IMODE(store.parent.stat().st_mode) & 0o022:
        text = f"others can write in {store.parent}, and answer the page in the place of the agent"
        return warning(name, text, f"chmod go-w {store.parent}")
    try:
        if store_lock.find_holder(store) is None:
            return ok(name, f"{path} is made when the agent starts")
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(WITHIN_S)
            asked.connect(str(path))
            answered = asked.recv(1)
    except FileNotFoundError:
        return failure(name, f"the agent runs without {path}; expected it, as it makes it with [web]", RESTART)
    except OSError as error:
        return failure(name, f"{path}: the agent does not answer ({fit_line(error)})", RESTART)
    if not answered:
        return failure(name, f"{path}: the agent says nothing", RESTART)
    return ok(name, f"the agent answers at {path}")
