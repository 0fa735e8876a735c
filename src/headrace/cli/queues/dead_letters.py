"""`headrace dlq ...`: list, show, redrive and discard dead letters."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import CommandFailed
from headrace.cli.options import ParsedType, confirm, dry_run_option, server_option, usage_errors, yes_option
from headrace.cli.output import counted, echo, local_time, output_option, print_rows, print_status, shortened, to_json
from headrace.cli.record_format import envelope_of
from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.redrive import MAX_REDRIVES, DeadLetter, RedriveOptions, RedriveResult
from headrace.machines.queues.filters import Filter, compile_filter
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.ids import MessageId, message_id_from_text
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic

T = TypeVar("T")

_COLUMNS = ("id", "state", "died", "attempts", "redriven", "subscription", "reason", "value")
_SHOWN_MAX = 40
_SETTLED = "settled"


filter_option = click.option(
    "--filter",
    "wanted",
    type=ParsedType("filter", compile_filter),
    metavar="TEXT",
    help="Only matching ones, for example \"header.type = 'order' and key like 'eu-%'\".",
)


@click.group()
def dlq() -> None:
    """List, show, redrive and discard dead letters."""


@dlq.command("list")
@click.argument("topic", required=False, type=TOPIC)
@filter_option
@click.option("-n", "--count", type=click.IntRange(1), default=100, show_default=True, help="At most this many.")
@click.option("--settled", is_flag=True, help="Include those that were redriven or discarded.")
@server_option
@output_option
def list_letters(
    topic: str | None, wanted: Filter | None, count: int, settled: bool, server: str, output: str | None
) -> None:
    """List the dead letters of TOPIC, or all dead-letter topics if no TOPIC is given.

    \b
    headrace dlq list orders --filter "header.headrace-dead-reason like '%timeout%'"
    """
    if topic is None:
        print_rows(with_cluster(server, _topics), ("topic", "dead_letters"), output)
        return

    async def work(queue: DeadLetterQueue) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(queue.letters(DeadLetterSelection(wanted=wanted))) as letters:
            async for letter, state in letters:
                if settled or state != _SETTLED:
                    rows.append(_row(letter, state))
                if len(rows) == count:
                    break
        return rows

    print_rows(_with_queue(server, topic, work) or [], _COLUMNS, output)


@dlq.command()
@click.argument("topic", type=TOPIC)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@server_option
def show(topic: str, ids: Sequence[str], server: str) -> None:
    """Print dead letters of TOPIC as JSON, with their complete values and all headers."""
    selection = DeadLetterSelection(ids=_ids(topic, ids))

    async def work(queue: DeadLetterQueue) -> None:
        async for letter, state in queue.letters(selection):
            echo(to_json(_row(letter, state) | envelope_of(letter.record)))

    _with_queue(server, topic, work, ids_given=True)


@dlq.command()
@click.argument("topic", type=TOPIC)
@click.argument("ids", nargs=-1, metavar="[ID...]")
@filter_option
@click.option("--all", "everything", is_flag=True, help="All dead letters of the topic.")
@click.option("--to-all", is_flag=True, help="Publish copies to TOPIC, which all of its subscriptions receive.")
@click.option("--to", metavar="TOPIC", help="Publish copies to this topic instead.")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most this many per second.")
@click.option(
    "--max-redrives",
    type=click.IntRange(1),
    default=MAX_REDRIVES,
    show_default=True,
    help="Do not redrive messages that were redriven this many times already.",
)
@yes_option
@dry_run_option
@server_option
def redrive(
    topic: str,
    ids: Sequence[str],
    *,
    wanted: Filter | None,
    everything: bool,
    to_all: bool,
    to: str | None,
    rate: int | None,
    max_redrives: int,
    yes: bool,
    dry_run: bool,
    server: str,
) -> None:
    """Redrive dead letters of TOPIC: those with the given IDs, those that match --filter, or --all.

    The subscription in which a message became a dead letter receives the message again, and no other. For this, TOPIC
    must still have the message. To resume an interrupted redrive, run the same command again.

    \b
    headrace dlq redrive orders orders.dlq:0:17
    headrace dlq redrive orders --filter "header.type = 'order'" --rate 100 --dry-run
    """
    selection = _selection(topic, ids, wanted, everything=everything)
    if to_all and to is not None:
        raise click.UsageError("--to-all and --to exclude each other")
    rules = RedriveOptions(to, rate, max_redrives, to_all)
    target = f" to {to}" if to else " to all subscriptions" if to_all else ""
    confirm(f"Redrive the selected dead letters of {topic}{target}?", yes or dry_run or bool(ids))

    def work(queue: DeadLetterQueue) -> Awaitable[RedriveResult]:
        return queue.redrive(selection, rules, dry_run=dry_run, report_progress=_print_progress)

    _print_result(_with_queue(server, topic, work, ids_given=bool(ids)), "redriven", dry_run)


@dlq.command()
@click.argument("topic", type=TOPIC)
@click.argument("ids", nargs=-1, metavar="[ID...]")
@filter_option
@click.option("--all", "everything", is_flag=True, help="All dead letters of the topic.")
@yes_option
@dry_run_option
@server_option
def discard(
    topic: str,
    ids: Sequence[str],
    *,
    wanted: Filter | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    server: str,
) -> None:
    """Discard dead letters of TOPIC: those with the given IDs, those that match --filter, or --all."""
    selection = _selection(topic, ids, wanted, everything=everything)
    confirm(f"Discard the selected dead letters of {topic}?", yes or dry_run)

    def work(queue: DeadLetterQueue) -> Awaitable[RedriveResult]:
        return queue.discard(selection, dry_run=dry_run, report_progress=_print_progress)

    _print_result(_with_queue(server, topic, work, ids_given=bool(ids)), "discarded", dry_run)


def _with_queue(
    server: str, topic: str, work: Callable[[DeadLetterQueue], Awaitable[T]], *, ids_given: bool = False
) -> T | None:
    """Return the result of `work`. If the topic has no dead-letter topic yet, return None with a message to the user,
    or raise a failure if the command names dead letters by id (`ids_given`)."""

    async def run(cluster: Cluster) -> T | None:
        queue = DeadLetterQueue(cluster, topic)
        try:
            await cluster.topic(queue.name)
        except UnknownTopicOrPartition:
            owner = queue.name.removesuffix(DEAD_LETTER_SUFFIX)
            await cluster.topic(owner)  # if the topic itself is missing, the error must name it
            if ids_given:
                raise CommandFailed(f"topic {owner} has no dead letters, so the ids do not exist") from None
            print_status(f"topic {owner} has no dead letters")
            return None
        return await work(queue)

    return with_cluster(server, run)


async def _topics(cluster: Cluster) -> list[dict[str, Any]]:
    views = await TopicAdmin(cluster).list()
    names = [view.name for view in views if view.name.endswith(DEAD_LETTER_SUFFIX) and not view.internal]
    return [{"topic": name, "dead_letters": await DeadLetterQueue(cluster, name).count()} for name in names]


def _selection(topic: str, ids: Sequence[str], wanted: Filter | None, *, everything: bool) -> DeadLetterSelection:
    if sum((bool(ids), wanted is not None, everything)) != 1:
        raise click.UsageError("specify exactly one of IDs, --filter and --all")
    return DeadLetterSelection(_ids(topic, ids) if ids else None, wanted)


def _ids(topic: str, texts: Sequence[str]) -> list[MessageId]:
    """Parse ids; an id may omit the topic, which is an argument of its own."""
    name = topic if topic.endswith(DEAD_LETTER_SUFFIX) else dead_letter_topic(topic)
    with usage_errors():
        return [message_id_from_text(text if text.count(":") > 1 else f"{name}:{text}") for text in texts]


def _row(letter: DeadLetter, state: str) -> dict[str, Any]:
    death = letter.death
    return {
        "id": str(letter.id),
        "state": state,
        "died": None if death is None else local_time(death.at_ms),
        "attempts": None if death is None else death.attempts,
        "redriven": letter.redriven,
        "subscription": None if death is None else death.subscription,
        "reason": None if death is None else death.reason,
        "origin": None if death is None else str(MessageId(death.topic, death.partition, death.offset)),
        "value": _shown(letter.record.value),
    }


def _shown(value: bytes | None) -> str | None:
    if value is None:
        return None
    return shortened(value[: _SHOWN_MAX * 4].decode("utf-8", "replace"), _SHOWN_MAX, filler=".", end="...")


def _print_progress(result: RedriveResult) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{result.settled} of {result.chosen}")
        sys.stderr.flush()


def _print_result(result: RedriveResult | None, verb: str, dry_run: bool) -> None:
    if result is None:
        return
    if sys.stderr.isatty():
        sys.stderr.write("\r")
    for letter_id, why in result.refused:
        print_status(f"{letter_id} was not settled: {why}")
    others = f"; {result.settled_before} were settled before, or are being settled by another process"
    verdict = f"would be {verb}" if dry_run else verb
    print_status(f"{result.settled} of {result.chosen} {verdict}{others if result.settled_before else ''}")
    if result.refused:
        raise CommandFailed(
            f"{counted(len(result.refused), 'dead letter')} not settled; `headrace dlq show` prints them"
        )
