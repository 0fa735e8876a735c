"""The story, chapter by chapter: what is done and why, by the commands of a user, and a look whether it came out so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from demo.stage import Stage

ORDERS = 2000
UNKNOWN_EVERY = 100  # so many orders go to a country that the worker does not know at first
RECORDS = ORDERS + ORDERS // UNKNOWN_EVERY  # a dead letter that is sent back is a record again
BIG_AMOUNT = 450
_COUNTRIES = ("DE", "NO", "PT")


def produce(stage: Stage) -> None:
    stage.title("1. A log: produce, and consume with a group")
    stage.say(
        f"""The broker above is one process with a folder. A topic is a log of records in partitions; a key decides
        which partition, and within it order holds. Here come {ORDERS:,} orders, a key and a JSON value per
        line; every one is on disk before its producer hears that all is well."""
    )
    stage.write("orders.txt", "".join(f"{key}:{json.dumps(order)}\n" for key, order in orders()))
    stage.do("headrace topic create orders -p 3")
    stage.do("headrace produce orders -K: < orders.txt")
    stage.say(
        """A group reads a stream together, and the broker remembers how far it came. This one stops half way, and
        its lag says so; the next run goes on where the first one stopped."""
    )
    stage.do(f"headrace consume orders -g billing -n {ORDERS // 2} > billed.txt")
    stage.do("headrace group lag billing -o table")
    lag = sum(row["lag"] for row in stage.ask("headrace group lag billing"))
    stage.expect("the lag of billing", lag, ORDERS - ORDERS // 2)
    stage.do("headrace consume orders -g billing -e >> billed.txt")
    billed = (stage.folder / "billed.txt").read_text().splitlines()
    stage.expect("orders billed", (len(billed), len(set(billed))), (ORDERS, ORDERS))
    stage.say(f"Billed: {len(billed):,} orders, each of them once.")


def work(stage: Stage) -> None:
    stage.title("2. A queue: workers, retries, dead letters")
    stage.say(
        """A subscription makes a queue of the same log: each message goes to one free worker, which has it on
        lease until it is settled. What fails comes again after a back-off, and after three attempts it becomes
        a dead letter, so that one bad message holds up nobody. The worker (ship.py, with the Python SDK) has
        two troubles: a carrier that sometimes does not answer, and a bug: it does not know the country XK."""
    )
    shutil.copy(Path(__file__).parent / "ship.py", stage.folder)
    stage.do(
        "headrace subscription create orders shipping --at start -o table"
        " --set share.delivery.count.limit=3 --set headrace.retry.backoff.ms=50"
    )
    unknown = ORDERS // UNKNOWN_EVERY
    said = stage.do_until("python ship.py", lambda: _is_settled(stage))
    stage.expect("labels written", said.split()[0], str(ORDERS - unknown))
    stage.say(
        """What the carrier refused went through at the second attempt. The bug's orders are dead letters, with the
        reason:"""
    )
    stage.do("headrace dlq list orders -n 3 -o table")
    stage.expect("dead letters", len(stage.ask("headrace dlq list orders")), unknown)


def redrive(stage: Stage) -> None:
    stage.title("3. The bug is fixed: redrive")
    stage.say(
        """Nothing is lost: dead letters are sent back when the cause is mended, and the fixed worker takes them."""
    )
    stage.do("headrace dlq redrive orders --all --yes")
    said = stage.do_until("python ship.py --fixed", lambda: _is_settled(stage))
    stage.expect("labels by the fixed worker", said.split()[0], str(ORDERS // UNKNOWN_EVERY))
    stage.expect("dead letters", stage.ask("headrace dlq list orders"), [])
    stage.do("headrace subscription describe shipping -o table")


def _is_settled(stage: Stage) -> bool:
    return all(row["backlog"] == 0 for row in stage.ask("headrace subscription describe shipping"))


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
