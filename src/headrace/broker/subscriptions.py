"""The subscriptions of all partitions that this broker leads.

The broker that leads both a partition and the co-located partition of the acks topic serves its subscriptions. `begin`
and `end` are called at the start and the end of each leadership; in between there is one `LedSubscriptions` per acks
partition. Until it is loaded, requests fail with `CoordinatorLoading`. The acks topic is created together with the
first subscription of a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakValueDictionary

from headrace.broker.catalogue import Catalogue
from headrace.broker.inherited_subscriptions import FindNames, InheritedSubscriptions
from headrace.broker.partition import Partition
from headrace.model.errors import (
    CoordinatorLoading,
    GroupIdNotFound,
    HeadraceError,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.model.names import ACKS_PREFIX
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import AnchoredClock, Clock
from headrace.runtime.eager import in_task
from headrace.runtime.entropy import Entropy

if TYPE_CHECKING:
    from headrace.broker.burials import Bury
    from headrace.broker.lease_source import Served
    from headrace.broker.led_subscriptions import LedSubscriptions
    from headrace.broker.subscription_surroundings import Surroundings
    from headrace.machines.subscription_tally import SubscriptionTally

_LOADING_SECONDS = 5.0  # how long a request waits for a load before it fails with a retriable error
_TRIM_SECONDS = 60.0
_REWRITE_SECONDS = 1.0  # pause after a failed write; nothing is leased meanwhile, because it would be redelivered


class Subscriptions:
    """Iterates over the loaded `LedSubscriptions`."""

    def __init__(
        self,
        catalogue: Catalogue,
        config_of: Callable[[UUID, str], SubscriptionConfig],
        bury: Bury,
        clock: Clock,
        entropy: Entropy,
        session_valid: Callable[[], bool],
        find_names: FindNames,
    ) -> None:
        self._catalogue = catalogue
        self._session_valid = session_valid
        self._config_of = config_of
        self._bury = bury
        self._clock = clock
        self._entropy = entropy
        self.now_ms = AnchoredClock(clock).now_ms  # so that a jump of the wall clock does not end all leases
        self._trimmed = clock.monotonic()
        self._led: dict[tuple[str, int], LedSubscriptions] = {}  # by topic and partition of the messages
        self._served: Served = {}
        self._inherited = InheritedSubscriptions(find_names)
        self._tallies: WeakValueDictionary[tuple[str, str], SubscriptionTally] = WeakValueDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[LedSubscriptions]:
        return (led for led in self._led.values() if led.loaded.is_set())

    # Lookup

    def find(self, topic: str, index: int) -> LedSubscriptions | None:
        """Return the subscriptions of a partition, or None if its topic never had one. Raise unless requests for them
        can be served now; call it again after every await."""
        led = self._led.get((topic, index))
        if led is not None:
            led.source()
            return led
        self._catalogue.partition(topic, index)
        if self._catalogue.companions.find(topic, ACKS_PREFIX) is None:
            return None
        raise NotLeader(f"this broker does not serve the subscriptions of {topic}-{index}; refresh the metadata")

    def of(self, topic: str, index: int) -> LedSubscriptions:
        """Like `find`, but raise if the topic has no subscriptions."""
        led = self.find(topic, index)
        if led is None:
            raise GroupIdNotFound(f"topic {topic} has no subscriptions")
        return led

    async def when_loaded(self, topic: str, index: int) -> LedSubscriptions | None:
        """Like `find`, but wait for a load in progress."""
        led = self._led.get((topic, index))
        if led is not None and not led.loaded.is_set():
            await in_task()
            try:
                async with asyncio.timeout(_LOADING_SECONDS):
                    await led.loaded.wait()
            except TimeoutError:
                raise CoordinatorLoading(
                    f"the subscriptions of {topic}-{index} are still being loaded; retry"
                ) from None
        return self.find(topic, index)

    async def ensure(self, topic: str, index: int) -> LedSubscriptions:
        """Like `of`, but create the acks topic if it does not exist yet. Returns without suspending if possible."""
        if (topic, index) not in self._led:
            self._ensure_running()
            self._catalogue.partition(topic, index)
            await in_task()
            await self._catalogue.ensure_companion(topic, ACKS_PREFIX)
        led = await self.when_loaded(topic, index)
        if led is None:
            raise NotLeader(f"{topic}-{index} is being recreated; retry")
        return led

    # Leaderships

    def begin(self, partition: Partition) -> None:
        """A leadership of this broker for the partition begins."""
        led = self._led.get((partition.topic, partition.index))
        if led is not None:
            led.meet()
        if not partition.topic.startswith(ACKS_PREFIX) or self._is_stopped.is_set():
            return
        topic = self._catalogue.topic(partition.topic)
        owner_id = topic.record.owner
        if owner_id is not None:
            self._lead(partition, owner_id)

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        led = self._led.get(_key_of(partition))
        if led is not None and led.partition is partition:
            del self._led[_key_of(partition)]
            led.close(NotLeader(f"this broker no longer leads {partition.topic}-{partition.index}"))

    async def load(self) -> None:
        """Load the subscriptions of current and future leaderships until stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for led in self._led.values():
                self._start_to_load(led)
            await self._is_stopped.wait()

    def _lead(self, partition: Partition, owner_id: UUID, pause_seconds: float = 0.0) -> None:
        # Imported with the first leadership of an acks partition: keeps startup fast without queues.
        from headrace.broker.lease_source import LeaseSource
        from headrace.broker.led_subscriptions import LedSubscriptions

        topic, index = _key_of(partition)
        source = LeaseSource(self._catalogue, topic, index, owner_id, self._served)
        acks = self._catalogue.find(partition.topic)
        older = 0 if acks is None else acks.record.partitions_before(index)
        led = LedSubscriptions(partition, source, self._surroundings(owner_id), partial(self._on_lost, owner_id), older)
        self._led[topic, index] = led
        self._start_to_load(led, pause_seconds)

    def _surroundings(self, owner_id: UUID) -> Surroundings:
        from headrace.broker.subscription_surroundings import Surroundings

        return Surroundings(
            clock=self._clock,
            now_ms=self.now_ms,
            chance=partial(self._entropy.uniform, 0.0, 1.0),
            config_of=partial(self._config_of, owner_id),
            tally_of=self._tally_of,
            bury=self._bury,
            start=self._start,
            session_valid=self._session_valid,
            inherited=self._inherited,
        )

    def _tally_of(self, topic: str, subscription: str) -> SubscriptionTally:
        """Return the counters that all partitions of the topic on this broker share."""
        from headrace.machines.subscription_tally import SubscriptionTally

        return self._tallies.setdefault((topic, subscription), SubscriptionTally())

    def _on_lost(self, owner_id: UUID, led: LedSubscriptions, error: HeadraceError) -> None:
        """Load the state again after acknowledgements could not be written."""
        partition = led.partition
        if self._led.get(_key_of(partition)) is led:
            del self._led[_key_of(partition)]
            led.close(error)
            if partition.is_leader and not self._is_stopped.is_set():
                self._lead(partition, owner_id, _REWRITE_SECONDS)

    def _start_to_load(self, led: LedSubscriptions, pause_seconds: float = 0.0) -> None:
        if not led.loaded.is_set() and self._tasks is not None:
            self._tasks.create_task(_load(led, pause_seconds))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    # Maintenance

    def reconfigure(self, subscription: str) -> None:
        """Apply the changed configuration of a subscription."""
        for led in self:
            led.reconfigure(subscription)

    def tick(self) -> None:
        """Delete history that is older than its retention."""
        now = self._clock.monotonic()
        if now - self._trimmed >= _TRIM_SECONDS and not self._is_stopped.is_set():
            self._trimmed = now
            for led in self:
                led.trim()

    def stop(self) -> None:
        """Answer all waiting requests, because the broker is shutting down."""
        self._is_stopped.set()
        for led in self._led.values():
            led.close(NotLeader("the broker is shutting down"))

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise NotLeader("the broker is shutting down")


def _key_of(acks: Partition) -> tuple[str, int]:
    return acks.topic.removeprefix(ACKS_PREFIX), acks.index


async def _load(led: LedSubscriptions, pause_seconds: float) -> None:
    if pause_seconds:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_seconds):
                await led.loaded.wait()  # it is closed before
    with suppress(NotLeader, UnknownTopicOrPartition):  # the new leader loads the partition itself
        await led.load()
