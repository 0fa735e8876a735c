"""Messages of a subscription from the shell: look at them, take them, settle them, and ask what became of one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click

from headrace.cli.envelope import envelope_of
from headrace.cli.failure import Failure
from headrace.cli.output import chat, output_option, print_rows, wants_json
from headrace.cli.session import server_option, with_cluster
from headrace.cli.times import DurationType, local_time
from headrace.client.cluster import Cluster
from headrace.client.fetched import ConsumedRecord
from headrace.client.leased import Message, Receipt, receipt_from_text
from headrace.client.settling import ACK, NACK, REJECT, Refused, settle
from headrace.client.subscription import LeasingRules, Subscription
from headrace.client.subscription_admin import SubscriptionAdmin
from headrace.model.errors import InvalidRequest
from headrace.model.message_ids import MessageId, message_id_from_text
from headrace.wire.messages.message_status import SubscriptionStatus
from headrace.wire.messages.settle import SettleItem

_MESSAGE_COLUMNS = ("receipt", "attempt", "key", "value")
_PEEK_COLUMNS = ("id", "state", "attempts", "key", "value")
_STATUS_COLUMNS = ("subscription", "state", "attempts", "how", "at", "until", "member", "reason")
_SHOWN_MAX = 60
_UNSET = -1


@click.command()
@click.argument("topic")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="At most so many.")
@server_option
@output_option
def peek(topic: str, name: str, count: int, server: str, output: str | None) -> None:
    """Show messages of TOPIC that are not settled for NAME, oldest first, without taking them."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(SubscriptionAdmin(cluster).peek(topic, name)) as peeked:
            async for record, status in peeked:
                place = MessageId(record.topic, record.partition, record.offset)
                row = {"id": str(place), "state": status.state, "attempts": status.attempts}
                rows.append(row | _content(record, output))
                if len(rows) == count:
                    break
        return rows

    print_rows(with_cluster(server, work), _PEEK_COLUMNS, output)


@click.command()
@click.argument("topic")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="At most so many.")
@click.option("--wait", "wait_ms", type=DurationType(), default=0, help="Wait so long for the first one, such as 10s.")
@click.option("--lease", "lease_ms", type=DurationType(), help="How long they are this one's; else as configured.")
@click.option("--ack", "acks", is_flag=True, help="Ack them when they are printed.")
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
    """Take messages of TOPIC for the subscription NAME and print them, with the receipts that `ack` wants.

    \b
    headrace subscription pull orders billing -n 10 --wait 5s --ack
    """
    rules = LeasingRules(lease_seconds=None if lease_ms is None else lease_ms / 1000)

    async def work(cluster: Cluster) -> list[Refused]:
        # A lease would make a subscription that is missing, and a name that was mistyped would then be one.
        await SubscriptionAdmin(cluster).describe(name, [topic])
        async with Subscription(cluster, topic, name, rules) as member:
            messages = await member.lease(count, wait_ms / 1000)
            if not messages:
                chat("there is no message to take now; `headrace subscription describe` shows what is leased or waits")
            print_rows([_message_row(message, output) for message in messages], _MESSAGE_COLUMNS, output)
            sys.stdout.flush()
            return await member.ack(messages) if acks else []

    _tell_refused(with_cluster(server, work))


@click.command()
@click.argument("name")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--nack", "nacks", is_flag=True, help="Give them back, to be delivered again.")
@click.option("--delay", "delay_ms", type=DurationType(), help="With --nack: after so long; else as configured.")
@click.option("--reject", "rejects", is_flag=True, help="Make them dead letters.")
@click.option("--reason", metavar="TEXT", help="With --nack or --reject: why.")
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
    """Settle messages that were pulled for the subscription NAME, by their receipts."""
    if nacks and rejects:
        raise click.UsageError("--nack and --reject exclude each other")
    if delay_ms is not None and not nacks:
        raise click.UsageError("--delay goes with --nack")
    how = SettleItem(
        how=NACK if nacks else REJECT if rejects else ACK,
        delay_ms=_UNSET if delay_ms is None else delay_ms,
        reason=reason,
    )
    found = [_receipt(text) for text in receipts]
    refused = with_cluster(server, lambda cluster: settle(cluster, name, found, how))
    chat(f"{len(found) - len(refused)} of {len(found)} messages settled")
    _tell_refused(refused)


@click.command()
@click.argument("message", metavar="ID")
@click.option("--subscription", "names", multiple=True, metavar="NAME", help="Only for these; repeatable.")
@server_option
@output_option
def status(message: str, names: Sequence[str], server: str, output: str | None) -> None:
    """Show what became of the message ID (<topic>:<partition>:<offset>) for each subscription."""
    try:
        place = message_id_from_text(message)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from None
    statuses = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).status(place, names or None))
    print_rows([_status_row(place, one) for one in statuses], _STATUS_COLUMNS, output)


def _receipt(text: str) -> Receipt:
    try:
        return receipt_from_text(text)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from None


def _tell_refused(refused: Sequence[Refused]) -> None:
    if not refused:
        return
    for one in refused:
        chat(f"{one.receipt.id}: {one.error.message}")
    raise Failure(f"{len(refused)} messages were refused; they may have been delivered to others meanwhile")


def _message_row(message: Message, output: str | None) -> dict[str, Any]:
    place = message.id
    record = ConsumedRecord(
        place.topic,
        place.partition,
        place.offset,
        message.timestamp_ms,
        message.key,
        message.value,
        message.headers,
    )
    row = {"receipt": str(message.receipt), "id": str(place), "attempt": message.attempt}
    return row | {"leased_until": local_time(message.leased_until_ms)} | _content(record, output)


def _status_row(place: MessageId, one: SubscriptionStatus) -> dict[str, Any]:
    return {
        "id": str(place),
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
    """All of it for programs, what fits into a line for people."""
    if wants_json(output):
        return envelope_of(record)
    return {"key": _shown(record.key), "value": _shown(record.value)}


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data.decode("utf-8", "backslashreplace")
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
