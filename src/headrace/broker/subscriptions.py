"""The subscriptions of this broker: knows which partitions' are here, and reads those whose lead has just begun.

The subscriptions of a partition are served by whoever leads both it and its companion in the acks topic. `begin` and
`end` are told of every lead; in between there is one `LedSubscriptions` per acks partition, made anew for each lead.
Until it is loaded everybody is told so. The acks topic is made when the first subscription of a topic is.
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

_LOADING_SECONDS = 5.0  # how long a request waits for a partition to be loaded before it says "ask again"
_TRIM_SECONDS = 60.0
_REWRITE_SECONDS = 1.0  # after what was settled could not be written: nothing is leased meanwhile, only to come again


class Subscriptions:
    """Iterates over what is here and loaded."""

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
        self.now_ms = AnchoredClock(clock).now_ms  # a jump of the wall clock must not end every lease
        self._trimmed = clock.monotonic()
        self._led: dict[tuple[str, int], LedSubscriptions] = {}  # by the topic whose subscriptions they are
        self._served: Served = {}
        self._inherited = InheritedSubscriptions(find_names)
        self._tallies: WeakValueDictionary[tuple[str, str], SubscriptionTally] = WeakValueDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[LedSubscriptions]:
        return (led for led in self._led.values() if led.loaded.is_set())

    # Who is here

    def find(self, topic: str, index: int) -> LedSubscriptions | None:
        """The subscriptions of a partition; None if its topic never had one. Raises unless requests for them can be
        answered here and now: ask again after every wait."""
        led = self._led.get((topic, index))
        if led is not None:
            led.source()
            return led
        self._catalogue.partition(topic, index)
        if self._catalogue.companions.find(topic, ACKS_PREFIX) is None:
            return None
        raise NotLeader(f"this broker does not serve the subscriptions of {topic}-{index}; refresh the metadata")

    def of(self, topic: str, index: int) -> LedSubscriptions:
        """The same where there must be one."""
        led = self.find(topic, index)
        if led is None:
            raise GroupIdNotFound(f"topic {topic} has no subscriptions")
        return led

    async def when_loaded(self, topic: str, index: int) -> LedSubscriptions | None:
        """The same, a little later if they are just being loaded."""
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
        """The same for the first subscription of a topic, too, for which the acks topic is made. Does not wait where
        there is nothing to wait for."""
        if (topic, index) not in self._led:
            self._ensure_running()
            self._catalogue.partition(topic, index)
            await in_task()
            await self._catalogue.ensure_companion(topic, ACKS_PREFIX)
        led = await self.when_loaded(topic, index)
        if led is None:
            raise NotLeader(f"{topic}-{index} is being recreated; retry")
        return led

    # Leads

    def begin(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
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
        """It leads it no longer, or no longer in the epoch in which it did."""
        led = self._led.get(_key_of(partition))
        if led is not None and led.partition is partition:
            del self._led[_key_of(partition)]
            led.close(NotLeader(f"this broker no longer leads {partition.topic}-{partition.index}"))

    async def load(self) -> None:
        """Read what this broker has begun to lead, and all that it will; returns when it is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for led in self._led.values():
                self._start_to_load(led)
            await self._is_stopped.wait()

    def _lead(self, partition: Partition, owner_id: UUID, pause_seconds: float = 0.0) -> None:
        # Loaded when the first acks topic is led: a broker without queues starts without them.
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
        """One for all partitions of the topic, for as long as any of them is here."""
        from headrace.machines.subscription_tally import SubscriptionTally

        return self._tallies.setdefault((topic, subscription), SubscriptionTally())

    def _on_lost(self, owner_id: UUID, led: LedSubscriptions, error: HeadraceError) -> None:
        """What was settled in memory could not be written: begin anew from what was."""
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

    # What time and others ask

    def reconfigure(self, subscription: str) -> None:
        """Its configuration is another from now on."""
        for led in self:
            led.reconfigure(subscription)

    def tick(self) -> None:
        """Delete history that is old enough."""
        now = self._clock.monotonic()
        if now - self._trimmed >= _TRIM_SECONDS and not self._is_stopped.is_set():
            self._trimmed = now
            for led in self:
                led.trim()

    def stop(self) -> None:
        """Answer everybody who waits: the broker is going down."""
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
    with suppress(NotLeader, UnknownTopicOrPartition):  # whoever leads the partition now reads it, too
        await led.load()
