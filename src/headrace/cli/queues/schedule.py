"""`headrace schedule ...`: add, list, cancel and reschedule delayed messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, cast

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.options import Command, confirm, option_group, server_option, usage_errors, yes_option
from headrace.cli.output import counted, echo, local_time, output_option, print_rows, print_status, wants_json
from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Header, ProducerSettings
from headrace.client.queues.schedule import Schedule, ScheduledMessage, When, topic_of
from headrace.model.durations import parse_duration, parse_time
from headrace.model.ids import MessageId, message_id_from_text

_SHOWN_MAX = 40


def when_options(command: Command) -> Command:
    """Add the options for the due time; the command receives them as one `when`, or None if none was given."""

    @wraps(command)
    def with_when(
        *arguments: Any, delay: str | None, deliver_at: str | None, every: str | None, cron: str | None, **others: Any
    ) -> Any:
        return command(*arguments, when=_when(delay, deliver_at, every, cron), **others)

    return option_group(
        click.option("--delay", metavar="DURATION", help="Due after a delay: 1500ms, 10s, 5m, 2h, 1d, PT90S, level3."),
        click.option("--deliver-at", metavar="TIME", help="Due at a time: RFC 3339, or milliseconds since 1970."),
        click.option("--every", metavar="DURATION", help="Repeat at this interval."),
        click.option(
            "--cron", metavar="TEXT", help='Repeat by a cron expression with five fields in UTC: "0 9 * * mon-fri".'
        ),
    )(cast("Command", with_when))


@click.group()
def schedule() -> None:
    """Add, list, cancel and reschedule delayed messages."""


@schedule.command()
@click.argument("topic", type=TOPIC)
@click.argument("value")
@click.option("-k", "--key", help="The key of the message.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable.")
@click.option("-p", "--partition", type=click.IntRange(0), help="The partition; default: by key, or any.")
@when_options
@server_option
@output_option
def add(
    topic: str,
    value: str,
    *,
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    when: When | None,
    server: str,
    output: str | None,
) -> None:
    """Deliver VALUE to TOPIC later, and print the id with which it can be cancelled or rescheduled.

    \b
    headrace schedule add orders 'remind c-42' --delay 10m
    headrace schedule add reports run --cron '0 6 * * mon-fri'
    """
    if when is None:
        raise click.UsageError("specify when the message is due: --delay, --deliver-at, --every or --cron")
    named = [header_of(text) for text in headers]

    async def work(cluster: Cluster) -> MessageId:
        await ensure_owner(cluster, topic)
        return await Schedule(cluster, topic).add(
            value.encode(),
            when=when,
            key=None if key is None else key.encode(),
            headers=named,
            partition=partition,
        )

    message_id = with_cluster(server, work)
    if wants_json(output):
        print_rows([{"id": str(message_id)}], ("id",), output)
    else:
        echo(str(message_id))


@schedule.command("list")
@click.argument("topic", type=TOPIC)
@click.option("-n", "--count", type=click.IntRange(1), default=100, show_default=True, help="At most this many.")
@server_option
@output_option
def list_messages(topic: str, count: int, server: str, output: str | None) -> None:
    """List the delayed messages of TOPIC, ordered by due time."""

    async def work(cluster: Cluster) -> list[ScheduledMessage]:
        found: list[ScheduledMessage] = []
        async for message in Schedule(cluster, topic).messages():
            found.append(message)
            if len(found) == count:
                break
        return found

    found = with_cluster(server, work)
    rows = [
        {
            "id": str(message.id),
            "due": local_time(message.due_ms),
            "due_ms": message.due_ms,
            "repeat": message.repeat,
            "key": _shown(message.key),
            "value": _shown(message.value),
        }
        for message in found
    ]
    print_rows(rows, ("id", "due", "repeat", "key", "value"), output)
    if len(found) == count and not wants_json(output):
        print_status(f"the output ends after {counted(count, 'message')}; use -n to show more")


@schedule.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@server_option
def cancel(ids: Sequence[str], yes: bool, server: str) -> None:
    """Cancel delayed messages."""
    message_ids = [_id(text) for text in ids]
    confirm(f"Cancel {', '.join(ids)}?", yes)

    async def work(cluster: Cluster) -> None:
        for message_id in message_ids:
            await Schedule(cluster, topic_of(message_id)).cancel(message_id)
            print_status(f"{message_id} cancelled")

    with_cluster(server, work)


@schedule.command()
@click.argument("id_", metavar="ID")
@click.option("--delay", metavar="DURATION", help="Due after a delay from now.")
@click.option("--deliver-at", metavar="TIME", help="Due at a time: RFC 3339, or milliseconds since 1970.")
@server_option
def move(id_: str, delay: str | None, deliver_at: str | None, server: str) -> None:
    """Change when a message is due; a repeating message continues from the new time."""
    message_id = _id(id_)
    when = _when(delay, deliver_at, None, None)
    if when is None:
        raise click.UsageError("specify when the message is due: --delay or --deliver-at")

    async def work(cluster: Cluster) -> int:
        due_ms = when.due_ms if when.due_ms is not None else cluster.clock.now_ms() + (when.delay_ms or 0)
        await Schedule(cluster, topic_of(message_id)).move(message_id, due_ms)
        return due_ms

    print_status(f"{message_id} is due {local_time(with_cluster(server, work))}")


async def ensure_owner(cluster: Cluster, topic: str) -> None:
    """Create the topic if it does not exist, as producing without a delay does. Delayed messages wait in a co-located
    topic, which cannot be created before its topic; without this call errors would name the co-located topic."""
    await cluster.call_with_retries(
        lambda: cluster.topic(topic, create=True),
        deadline_seconds=ProducerSettings().topic_wait_seconds,
        topics_may_appear=True,
    )


def header_of(text: str) -> Header:
    name, separator, value = text.partition("=")
    if not name:
        raise click.UsageError(f"{text!r} is invalid; write NAME=VALUE")
    return name, value.encode() if separator else None


def _when(delay: str | None, deliver_at: str | None, every: str | None, cron: str | None) -> When | None:
    if delay is None and deliver_at is None and every is None and cron is None:
        return None
    if every is not None and cron is not None:
        raise click.UsageError("--every and --cron exclude each other")
    with usage_errors():
        when = When(
            None if deliver_at is None else parse_time(deliver_at),
            None if delay is None else parse_duration(delay),
            cron if every is None else f"every {every}",
        )
        when.headers()
        return when


def _id(text: str) -> MessageId:
    with usage_errors():
        message_id = message_id_from_text(text)
        topic_of(message_id)
        return message_id


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[: 4 * _SHOWN_MAX].decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
