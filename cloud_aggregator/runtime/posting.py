"""Sends one change after the other to a receiver, from a thread of its own, so that a slow one never holds up a
gateway.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus

from fedgate.cloud_aggregator.events import Post, Posted, Send

CLIENT_ERRORS = range(HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
# Of these the ones that say nothing of the change: who may post, and when.
OF_THE_SENDER = {
    *(HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED),
    *(HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS),
}


def is_refusal(status: int) -> bool:
    """Tell whether an HTTP status says that this change will not be taken, however often it is sent."""
    return status in CLIENT_ERRORS and status not in OF_THE_SENDER


class Poster(ABC):
    """Sends one change at a time; `done` is called from its thread with how it went."""

    def __init__(self, done: Callable[[Posted], None]) -> None:
        self._done = done

    def send(self, effect: Send) -> None:
        """Begin to send a change; returns at once."""
        threading.Thread(target=self._send, args=(effect.post,), daemon=True).start()

    def _send(self, post: Post) -> None:
        posted = Posted(post.id, "the attempt broke off", channel=post.channel)
        try:
            posted = self.attempt(post)
        finally:  # whatever happens: the queue waits for this word
            self._done(posted)

    @abstractmethod
    def attempt(self, post: Post) -> Posted:
        """Send a change and return how it went."""
