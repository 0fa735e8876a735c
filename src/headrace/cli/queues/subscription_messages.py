"""Peek at, pull, settle and show the status of messages of a subscription."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.failure import CommandFailed
from headrace.cli.options import server_option
from headrace.cli.output import output_option, print_rows, print_status, wants_json
from headrace.cli.record_format import envelope_of
from headrace.cli.times import DURATION, local_time
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, receipt_from_text
from headrace.client.queues.settling import ACK, NACK, REJECT, FailedSettlement, settle
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId, message_id_from_text
from headrace.wire.messages.queues import SettleItem, SubscriptionStatus

_MESSAGE_COLUMNS = ("receipt", "attempt", "key", "value")
_PEEK_COLUMNS = ("id", "state", "attempts", "key", "value")
_STATUS_COLUMNS = ("subscription", "state", "attempts", "how", "at", "until", "member", "reason")
_SHOWN_MAX = 60
_UNSET = -1


@click.command()
@click.argument("topic")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="At most this many.")
@server_option
@output_option
def peek(topic: str, name: str, count: int, server: str, output: str | None) -> None:
    """Show unsettled messages of TOPIC for the subscription NAME, oldest first, without leasing them."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(SubscriptionAdmin(cluster).peek(topic, name)) as peeked:
            async for record, status in peeked:
                message_id = MessageId(record.topic, record.partition, record.offset)
                row = {"id": str(message_id), "state": status.state, "attempts": status.attempts}
                rows.append(row | _content(record, output))
                if len(rows) == count:
                    break
        return rows

    print_rows(with_cluster(server, work), _PEEK_COLUMNS, output)


@click.command()
@click.argument("topic")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="At most this many.")
@click.option("--wait", "wait_ms", type=DURATION, default=0, help="Wait for the first message, for example 10s.")
@click.option("--lease", "lease_ms", type=DURATION, help="The lease duration; default: as configured.")
@click.option("--ack", "acks", is_flag=True, help="Ack the messages after printing them.")
@server_option
@output_option
def pull(
    topic: str,
    name: str,
    *,
    count: int,
    wait_ms: int,
    lease_ms: int | None,
    acks: bool,
    server: str,
    output: str | None,
) -> None:
    """Lease messages of TOPIC for the subscription NAME and print them, with the receipts that `ack` requires.

    \b
    headrace subscription pull orders billing -n 10 --wait 5s --ack
    """
    lease_seconds = None if lease_ms is None else lease_ms / 1000

    async def work(cluster: Cluster) -> list[FailedSettlement]:
        # Check first: a lease creates a missing subscription, so a mistyped name would create one.
        await SubscriptionAdmin(cluster).describe(name, [topic])
        async with Subscription(cluster, topic, name, lease_seconds) as member:
            messages = await member.lease(count, wait_ms / 1000)
            if not messages:
                print_status(
                    "no message is available; `headrace subscription describe` shows leased and waiting messages"
                )
            print_rows([_message_row(message, output) for message in messages], _MESSAGE_COLUMNS, output)
            sys.stdout.flush()
            return await member.ack(messages) if acks else []

    _print_failed(with_cluster(server, work))


@click.command()
@click.argument("name")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--nack", "nacks", is_flag=True, help="Release the messages for redelivery.")
@click.option("--delay", "delay_ms", type=DURATION, help="With --nack: the retry delay; default: as configured.")
@click.option("--reject", "rejects", is_flag=True, help="Turn the messages into dead letters.")
@click.option("--reason", metavar="TEXT", help="With --nack or --reject: the reason.")
@server_option
def ack(
    name: str,
    receipts: Sequence[str],
    *,
    nacks: bool,
    delay_ms: int | None,
    rejects: bool,
    reason: str | None,
    server: str,
) -> None:
    """Settle messages of the subscription NAME, identified by the receipts of `pull`."""
    if nacks and rejects:
        raise click.UsageError("--nack and --reject exclude each other")
    if delay_ms is not None and not nacks:
        raise click.UsageError("--delay requires --nack")
    settlement = SettleItem(
        how=NACK if nacks else REJECT if rejects else ACK,
        delay_ms=_UNSET if delay_ms is None else delay_ms,
        reason=reason,
    )
    found = [_receipt(text) for text in receipts]
    failed = with_cluster(server, lambda cluster: settle(cluster, name, found, settlement))
    print_status(f"{len(found) - len(failed)} of {len(found)} messages settled")
    _print_failed(failed)


@click.command()
@click.argument("message", metavar="ID")
@click.option("--subscription", "names", multiple=True, metavar="NAME", help="Only this subscription; repeatable.")
@server_option
@output_option
def status(message: str, names: Sequence[str], server: str, output: str | None) -> None:
    """Show the status of the message ID (<topic>:<partition>:<offset>) in each subscription."""
    try:
        message_id = message_id_from_text(message)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from None
    statuses = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).status(message_id, names or None))
    print_rows([_status_row(message_id, one) for one in statuses], _STATUS_COLUMNS, output)


def _receipt(text: str) -> LeaseReceipt:
    try:
        return receipt_from_text(text)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from None


def _print_failed(failed: Sequence[FailedSettlement]) -> None:
    if not failed:
        return
    for one in failed:
        print_status(f"{one.receipt.id}: {one.error.message}")
    raise CommandFailed(f"{len(failed)} messages were not settled; their leases may have expired")


def _message_row(message: LeasedMessage, output: str | None) -> dict[str, Any]:
    message_id = message.id
    record = ConsumedRecord(
        message_id.topic,
        message_id.partition,
        message_id.offset,
        message.timestamp_ms,
        message.key,
        message.value,
        message.headers,
    )
    row = {"receipt": str(message.receipt), "id": str(message_id), "attempt": message.attempt}
    return row | {"leased_until": local_time(message.leased_until_ms)} | _content(record, output)


def _status_row(message_id: MessageId, one: SubscriptionStatus) -> dict[str, Any]:
    return {
        "id": str(message_id),
        "subscription": one.subscription,
        "state": one.state,
        "attempts": one.attempts,
        "how": one.how,
        "at": local_time(one.at_ms),
        "until": local_time(one.until_ms),
        "member": one.member,
        "reason": one.reason,
    }


def _content(record: ConsumedRecord, output: str | None) -> dict[str, Any]:
    """Return the complete content as JSON, or shortened to a line of a table."""
    if wants_json(output):
        return envelope_of(record)
    return {"key": _shown(record.key), "value": _shown(record.value)}


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
