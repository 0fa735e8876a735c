"""The context of a request for its handler, and its operations on the connection."""

from __future__ import annotations

from collections.abc import Callable


class RequestContext:
    """One request: its version, its sender, and its listener.

    Requests of one connection start in their order. A handler that must wait before it has done what that order
    promises (a produce whose batch is checked in the disk threads) holds the connection and releases it afterwards.
    """

    __slots__ = ("_close", "_close_callbacks", "_hold", "client_host", "client_id", "listener", "version")

    def __init__(
        self,
        version: int,
        client_id: str | None,
        client_host: str,
        listener: str,
        hold: Callable[[bool], None],
        close: Callable[[], None],
        close_callbacks: dict[object, Callable[[], None]] | None = None,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        self._hold = hold
        self._close = close
        self._close_callbacks = close_callbacks

    def hold(self) -> None:
        """Start no further request of this connection until `release`."""
        self._hold(True)

    def release(self) -> None:
        self._hold(False)

    def close_connection(self) -> None:
        """Close the connection: the only way to report an error to a client that expects no response (acks=0)."""
        self._close()

    def when_closed(self, key: object, callback: Callable[[], None]) -> None:
        """Register a callback for the end of the connection; a later one with the same key replaces it."""
        if self._close_callbacks is not None:
            self._close_callbacks[key] = callback
