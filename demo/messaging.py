"""The first part of the demo: a log, a queue, and dead letters, with commands and checks of their results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from demo.runner import DemoRunner

ORDERS = 2000
UNKNOWN_EVERY = 100  # one of so many orders is for a country that the worker does not know at first
BIG_AMOUNT = 450
_COUNTRIES = ("DE", "NO", "PT")


def produce(demo: DemoRunner) -> None:
    demo.title("1. A log: produce, and consume with a group")
    demo.explain(
        f"""The broker above is one process with a data folder. A topic is a log of records in partitions. The key of a
        record determines its partition, and a partition is ordered. The producer writes {ORDERS:,} orders, a key and a
        JSON value per line. Each is acknowledged when it is on disk."""
    )
    demo.write("orders.txt", "".join(f"{key}:{json.dumps(order)}\n" for key, order in orders()))
    demo.run("headrace topic create orders -p 3")
    demo.run("headrace produce orders -K: < orders.txt")
    demo.explain(
        """The members of a group share a stream, and the broker stores the committed offsets of the group. This run
        stops half way, as its lag shows; the next run continues at the committed offsets."""
    )
    demo.run(f"headrace consume orders -g billing -n {ORDERS // 2} > billed.txt")
    demo.run("headrace group lag billing -o table")
    lag = sum(row["lag"] for row in demo.query("headrace group lag billing"))
    demo.expect("the lag of billing", lag, ORDERS - ORDERS // 2)
    demo.run("headrace consume orders -g billing -e >> billed.txt")
    billed = (demo.folder / "billed.txt").read_text().splitlines()
    demo.expect("orders billed", (len(billed), len(set(billed))), (ORDERS, ORDERS))
    demo.explain(f"Billed: {len(billed):,} orders, each exactly once.")


def work(demo: DemoRunner) -> None:
    demo.title("2. A queue: workers, retries, dead letters")
    demo.explain(
        """A subscription turns the same log into a queue: each message is leased to one free worker, which settles it.
        A failed message is delivered again after a back-off, and becomes a dead letter after three attempts, so that it
        does not block other messages. The worker (ship.py, with the Python SDK) has two problems: a carrier that
        sometimes does not respond, and a bug: it does not know the country XK."""
    )
    shutil.copy(Path(__file__).parent / "ship.py", demo.folder)
    demo.run(
        "headrace subscription create orders shipping --at start -o table"
        " --set share.delivery.count.limit=3 --set headrace.retry.backoff.ms=50"
    )
    unknown = ORDERS // UNKNOWN_EVERY
    output = demo.run_until("python ship.py", lambda: _is_settled(demo))
    demo.expect("labels written", output.split()[0], str(ORDERS - unknown))
    demo.explain(
        """The second attempt succeeded where the carrier had not responded. The orders that triggered the bug are dead
        letters, with the reason:"""
    )
    demo.run("headrace dlq list orders -n 3 -o table")
    demo.expect("dead letters", len(demo.query("headrace dlq list orders")), unknown)


def redrive(demo: DemoRunner) -> None:
    demo.title("3. The bug is fixed: redrive")
    demo.explain(
        """Nothing is lost: after the fix, the subscription shipping gets the messages of its dead letters again, and
        the worker handles them. The topic does not change."""
    )
    demo.run("headrace dlq redrive orders --all --yes")
    output = demo.run_until("python ship.py --fixed", lambda: _is_settled(demo))
    demo.expect("labels by the fixed worker", output.split()[0], str(ORDERS // UNKNOWN_EVERY))
    demo.expect("dead letters", demo.query("headrace dlq list orders"), [])
    demo.run("headrace subscription describe shipping -o table")


def _is_settled(demo: DemoRunner) -> bool:
    return all(row["backlog"] == 0 for row in demo.query("headrace subscription describe shipping"))


def orders() -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            f"c-{number * 7919 % 97}",
            {
                "id": number,
                "country": "XK" if number % UNKNOWN_EVERY == 7 else _COUNTRIES[number % len(_COUNTRIES)],
                "amount": number * 31 % 500,
            },
        )
        for number in range(1, ORDERS + 1)
    ]
