"""Keep the repeated messages of an application in step with its declared schedules.

- A schedule is one repeated message in the topic `<app>.schedules`, whose key is the name of the schedule; so each
  occurrence is released exactly once, however many workers run.
- A starting worker cancels messages of schedules that are not declared any more, or were declared differently, and adds
  those that are missing.
- Workers that start at the same time may add the same schedule. Each of them then sees all of its messages, and cancels
  all but the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from headrace.client.queues.schedule import Schedule, ScheduledMessage
from headrace.model.errors import InvalidRecordState
from headrace.sdk.async_client import AsyncClient
from headrace.sdk.outgoing import NewMessage, outgoing_message
from headrace.worker.app import ScheduledHandler


async def reconcile_schedules(client: AsyncClient, topic: str, declared: Mapping[str, ScheduledHandler]) -> None:
    await client.create_topic(topic, partitions=1)
    schedule = Schedule(client.cluster, topic)
    present: set[bytes | None] = set()
    async for message in schedule.messages():
        if _is_declared(message, topic, declared):
            present.add(message.key)
        else:
            await _cancel(schedule, message)
    missing = [one for one in declared.values() if one.name.encode() not in present]
    if missing:
        await client.publish_many(topic, [_new_message(one) for one in missing])
    await _cancel_repeated(schedule)


def _new_message(handler: ScheduledHandler) -> NewMessage:
    return NewMessage(value=None, key=handler.name, repeat=handler.repeat, ttl=handler.expires)


def _is_declared(message: ScheduledMessage, topic: str, declared: Mapping[str, ScheduledHandler]) -> bool:
    handler = declared.get((message.key or b"").decode("utf-8", "replace"))
    return handler is not None and set(outgoing_message(topic, _new_message(handler)).headers) <= set(message.headers)


async def _cancel_repeated(schedule: Schedule) -> None:
    messages = [message async for message in schedule.messages()]
    seen: set[bytes | None] = set()
    for message in sorted(messages, key=lambda one: one.id):
        if message.key in seen:
            await _cancel(schedule, message)
        seen.add(message.key)


async def _cancel(schedule: Schedule, message: ScheduledMessage) -> None:
    with suppress(InvalidRecordState):  # another worker was faster
        await schedule.cancel(message.id)
