"""Write messages that exhausted their delivery attempts, or were rejected, to the dead-letter topic, then settle them.

The order ensures that no message is lost. After a crash in between, the message is written again, and the dead-letter
topic drops the duplicate by its dedup id. If a write fails, it is retried with exponential backoff; meanwhile the
message is not delivered, and other messages are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.transaction_markers import pauses
from headrace.machines.subscription_answers import Dying
from headrace.machines.subscription_tally import SubscriptionTally
from headrace.model.errors import HeadraceError
from headrace.wire.acks_records import How, Settled

if TYPE_CHECKING:
    from headrace.broker.led_subscriptions import LedSubscriptions

log = logging.getLogger(__name__)

_AT_A_TIME = 32

Bury = Callable[[str, int, int, str, int, str], Awaitable[None]]
"""Takes topic, partition, offset, subscription, attempts and reason; returns when the dead letter is committed."""


class Burials:
    def __init__(
        self, led: LedSubscriptions, bury: Bury, start: Callable[..., asyncio.Task[None]], now_ms: Callable[[], int]
    ) -> None:
        self._led = led
        self._bury = bury
        self._start = start
        self._now_ms = now_ms
        self._task: asyncio.Task[None] | None = None
        self._failed: dict[tuple[str, int], HeadraceError] = {}  # failed in this round: try the others first

    def look(self) -> None:
        """Check for messages to dead-letter."""
        if self._task is None and next(self._dying(), None) is not None:
            self._task = self._start(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _dying(self) -> Iterator[tuple[str, Dying]]:
        for name, subscription in list(self._led.subscriptions.items()):
            for dying in subscription.dying():
                yield name, dying

    async def _run(self) -> None:
        try:
            for pause in pauses():
                error = await self._bury_all()
                if error is None:
                    return
                log.warning(
                    "writing dead letters failed, will retry partition=%s-%d messages=%d error=%s",
                    *self._led.place,
                    len(self._failed),
                    error,
                )
                await asyncio.sleep(pause)
        finally:
            self._task = None

    async def _bury_all(self) -> HeadraceError | None:
        """Try to write all dead letters; return an error if some failed."""
        self._failed.clear()
        try:
            while await self._bury_some():
                pass
        except HeadraceError as error:
            return error
        return next(reversed(self._failed.values()), None)

    async def _bury_some(self) -> bool:
        """Try messages that were not tried in this round; return whether there were any."""
        self._led.source()
        untried = (one for one in self._dying() if (one[0], one[1].offset) not in self._failed)
        some = list(islice(untried, _AT_A_TIME))
        async with asyncio.TaskGroup() as tasks:
            for one in some:
                tasks.create_task(self._bury_one(*one))
        return bool(some)

    async def _bury_one(self, name: str, dying: Dying) -> None:
        how: How = "dead"
        try:
            source = self._led.source()
            if dying.offset < source.log.start_offset:
                how = "expired"
            elif not self._led.find(name).config.headrace_dead_letters_enable:
                how = "discarded"
            else:
                await self._bury(source.topic, source.index, dying.offset, name, dying.attempts, dying.reason)
                self._led.source()
            subscription = self._led.find(name)
        except HeadraceError as error:
            self._failed[name, dying.offset] = error
            return
        if subscription.state_of(dying.offset).state == "dying":  # no seek has changed it meanwhile
            ranges = [(dying.offset, dying.offset)]
            self._led.put(name, subscription, [Settled(at=self._now_ms(), how=how, ranges=ranges)])
            _count(subscription.tally, how)
            self._led.wake(name)  # messages with the same key may have waited for it


def _count(tally: SubscriptionTally, how: How) -> None:
    if how == "dead":
        tally.dead += 1
    elif how == "discarded":
        tally.discarded += 1
    else:
        tally.expired += 1
