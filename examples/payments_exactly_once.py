"""Payments, exactly once: commit bookings and consumed offsets together, whatever fails in between.

python payments_exactly_once.py [ADDRESS]
"""

import asyncio
import sys

from headrace import AsyncClient, NewMessage

WORKER = "bookkeeper-1"  # same at every start, unique among workers: the latest user of the id fences the previous
PAYMENTS = [("ada", 30), ("grace", 20), ("ada", -10), ("alan", 5)]


class PowerCut(Exception):
    """A failure in the middle of the work."""


async def book(client: AsyncClient, breaks_at: int | None) -> None:
    """Read payments and write bookings, each in its own transaction."""
    async with client.transaction(WORKER):
        pass  # aborts a transaction that a previous run left open
    booked = 0
    async with client.consume("payments", group="bookkeeping", commit="manual") as stream:
        async for record in stream:
            async with client.transaction(WORKER) as tx:
                tx.ack(record)
                payment = record.json()
                await tx.publish("ledger", {**payment, "payment": str(record.id)}, key=record.key)
                if booked == breaks_at:
                    raise PowerCut(f"while {record.id} was booked")
            booked += 1
            if payment["is_last"]:
                return


async def main(address: str) -> None:
    async with AsyncClient(address) as client:
        await client.create_topic("payments", partitions=1)
        await client.create_topic("ledger", partitions=1)
        last = len(PAYMENTS) - 1
        await client.publish_many(
            "payments",
            [
                NewMessage(value={"who": who, "amount": amount, "is_last": number == last}, key=who)
                for number, (who, amount) in enumerate(PAYMENTS)
            ],
        )

    for breaks_at in (0, 1, None):  # start the worker three times; the first two fail
        async with AsyncClient(address) as client:
            try:
                await book(client, breaks_at)
            except PowerCut as cut:
                print("power cut", cut)

    balances: dict[str, int] = {}
    async with AsyncClient(address) as client, client.consume("ledger") as ledger:
        async for entry in ledger:
            booking = entry.json()
            balances[booking["who"]] = balances.get(booking["who"], 0) + booking["amount"]
            if booking["is_last"]:
                break
    print("balances:", balances)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["127.0.0.1:9092"]))
