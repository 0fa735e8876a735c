"""A recommender's fan-out: several services read all events of one stream, each at its own pace.

python recommender_fanout.py [ADDRESS]
"""

import asyncio
import sys
from collections import Counter

from headrace import AsyncClient, AsyncMessage, NewMessage

EVENTS = [
    {"user": user, "item": item, "kind": kind}
    for user in ("ada", "grace", "alan")
    for item, kind in (("lamp", "view"), ("desk", "view"), ("lamp", "buy"))
]


async def main(address: str) -> None:
    async with AsyncClient(address) as client:
        # Three subscriptions: each gets every event and divides them among its workers. One has a filter.
        for name in ("trends", "profiles"):
            await client.create_subscription("events", name)
        await client.create_subscription(
            "events",
            "thanks",
            configs={"headrace.filter": "header.kind = 'buy'", "headrace.key.concurrency": "1"},
        )
        await client.publish_many(
            "events",
            [NewMessage(value=event, key=event["user"], headers={"kind": event["kind"]}) for event in EVENTS],
        )

        trends: Counter[str] = Counter()
        profiles: dict[str, list[str]] = {}
        thanked: list[str] = []

        async def count(message: AsyncMessage) -> None:
            trends[message.json()["item"]] += 1

        async def learn(message: AsyncMessage) -> None:
            event = message.json()
            profiles.setdefault(event["user"], []).append(event["item"])

        async def thank(message: AsyncMessage) -> None:
            thanked.append(message.key or "")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.work("events", "trends", count, concurrency=8))
            tasks.create_task(client.work("events", "profiles", learn, concurrency=8))
            tasks.create_task(client.work("events", "thanks", thank, concurrency=2))
            while trends.total() < len(EVENTS) or len(thanked) < 3 or sum(map(len, profiles.values())) < len(EVENTS):
                await asyncio.sleep(0.02)
            client.stop()

        print("trends:", trends.most_common())
        print("profiles:", {user: sorted(items) for user, items in sorted(profiles.items())})
        print("thanked:", sorted(thanked))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["127.0.0.1:9092"]))
