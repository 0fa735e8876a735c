"""`Client`: the synchronous form of `AsyncClient`, for programs with or without threads.

    with Client("127.0.0.1:9092") as client:
        client.publish("orders", {"id": 1}, key="c-42")
        for message in client.subscribe("orders", "billing"):
            with message:
                print(message.json())

- The event loop runs in its own thread, so leases are extended while a handler blocks.
- All methods may be called from any thread. Create the client after a fork, not before.
"""

from __future__ import annotations

import atexit
import threading
from typing import Self
from weakref import WeakSet

from headrace.sdk.async_client import AsyncClient
from headrace.sdk.errors import ClientClosed
from headrace.sdk.loop_thread import LoopThread, blocking, blocking_open, blocking_until_stopped
from headrace.sdk.sync_messages import Messages, Stream, Transaction
from headrace.sdk.times import Duration

_running: WeakSet[Client] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Release the leases of clients that the process did not close."""
    for client in list(_running):
        client.close()


class Client:
    """`AsyncClient` documents the parameters of all methods."""

    def __init__(
        self,
        address: str | None = None,
        *,
        client_id: str = "headrace-sdk",
        timeout: Duration = 60.0,
        create_topics: bool = True,
        compression: str = "none",
    ) -> None:
        self._inner = AsyncClient(
            address, client_id=client_id, timeout=timeout, create_topics=create_topics, compression=compression
        )
        self._starting = threading.Lock()
        self._running: LoopThread | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Deliver no more messages; returns at once. Suitable for a signal handler: `signal.signal(SIGTERM, lambda *_:
        client.stop())`."""
        running = self._running
        if running is not None:
            running.post(self._inner.stop)

    def close(self) -> None:
        """Stop, release unsettled messages, flush pending writes, and close the connections."""
        with self._starting:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            try:
                running.call(self._inner.close())
            finally:
                running.stop()

    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    cancel = blocking(AsyncClient.cancel)
    transaction = blocking_open(AsyncClient.transaction, Transaction)

    request = blocking(AsyncClient.request)
    respond = blocking_until_stopped(AsyncClient.respond)

    subscribe = blocking_open(AsyncClient.subscribe, Messages)
    work = blocking_until_stopped(AsyncClient.work)
    create_subscription = blocking(AsyncClient.create_subscription)
    backlog = blocking(AsyncClient.backlog)
    peek = blocking(AsyncClient.peek)
    seek = blocking(AsyncClient.seek)
    dead_letters = blocking(AsyncClient.dead_letters)
    redrive = blocking(AsyncClient.redrive)
    discard = blocking(AsyncClient.discard)

    consume = blocking_open(AsyncClient.consume, Stream)
    lag = blocking(AsyncClient.lag)
    topics = blocking(AsyncClient.topics)
    create_topic = blocking(AsyncClient.create_topic)
    delete_topic = blocking(AsyncClient.delete_topic)
    purge = blocking(AsyncClient.purge)

    @property
    def _portal(self) -> LoopThread:
        """The loop, started at the first call."""
        running = self._running
        if running is None:
            with self._starting:
                if self._is_closed:
                    raise ClientClosed
                if self._running is None:
                    self._running = LoopThread("headrace-client")
                    _running.add(self)
                running = self._running
        return running
