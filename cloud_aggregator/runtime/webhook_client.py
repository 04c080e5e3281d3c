"""Posts changes to the webhook, and waits no longer for its answer than the settings say."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from fedgate.cloud_aggregator.events import Post, Posted
from fedgate.cloud_aggregator.runtime.posting import Poster, is_refusal
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.notifications import Webhook
from fedgate.config.settings.settings import SettingsError

SUCCESS = range(HTTPStatus.OK, HTTPStatus.MULTIPLE_CHOICES)
REDIRECTS = range(HTTPStatus.MULTIPLE_CHOICES, HTTPStatus.BAD_REQUEST)


class WebhookClient(Poster):
    """Posts one change at a time; the secret and the certificates are read for each."""

    def __init__(self, spec: Webhook, done: Callable[[Posted], None]) -> None:
        super().__init__(done)
        self._spec = spec

    def attempt(self, post: Post) -> Posted:
        """Post a change and return how it went.

        Nothing is followed: a redirect could lead to a receiver that nobody has chosen, without TLS.
        """
        host = self._spec.parts.hostname
        try:
            status = self._request(post)
        except TimeoutError:
            return Posted(post.id, f"{host} did not answer within {self._spec.timeout_s:g} s")
        except SettingsError as error:  # it waits until somebody has put that right
            return Posted(post.id, str(error))
        except (OSError, http.client.HTTPException) as error:
            return Posted(post.id, f"{host} cannot be reached ({type(error).__name__}: {error})")
        if status in SUCCESS:
            return Posted(post.id)
        elsewhere = ", which sends elsewhere; give the address itself in webhook.url" if status in REDIRECTS else ""
        return Posted(post.id, f"{host} answers {status}{elsewhere}", is_refusal(status))

    def _request(self, post: Post) -> int:
        parts, timeout_s = self._spec.parts, self._spec.timeout_s
        host, port, tls, headers = parts.hostname or "", parts.port, _make_tls(self._spec), self._make_headers(post)
        if tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        expired = threading.Event()
        try:
            connection.connect()
            # The timeout is of each read; one who answers a byte at a time must not hold the queue up for ever.
            deadline = threading.Timer(timeout_s, _cut, (connection.sock, expired))
            deadline.daemon = True
            deadline.start()
            try:
                connection.request("POST", path, post.body, headers)
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                if expired.is_set():
                    raise TimeoutError from None
                raise
            finally:
                deadline.cancel()
        finally:
            connection.close()

    def _make_headers(self, post: Post) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"fedgate/{VERSION}",
            "Idempotency-Key": f'"{post.id}"',
        }
        file = self._spec.secret_file
        return headers if file is None else {**headers, self._spec.header: _read_secret(file)}


def check(spec: Webhook) -> None:
    """Raise `SettingsError` where the files that posting needs cannot be used."""
    _make_tls(spec)
    if spec.secret_file is not None:
        _read_secret(spec.secret_file)


def _cut(connected: socket.socket, expired: threading.Event) -> None:
    expired.set()
    with suppress(OSError):  # it has ended by itself
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # of the connection below TLS, whose state is not ours


def _make_tls(spec: Webhook) -> ssl.SSLContext | None:
    if spec.parts.scheme == "http":
        return None
    try:
        return ssl.create_default_context(cafile=None if spec.ca_file is None else str(spec.ca_file))
    except OSError as error:
        raise SettingsError(f"webhook.ca_file: {spec.ca_file} cannot be used ({error})") from None


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"webhook.secret_file: {path} cannot be read ({error})") from None
    if not secret.isprintable() or not secret:
        raise SettingsError(f"webhook.secret_file: {path}: expected one line that becomes a header's value")
    return secret
