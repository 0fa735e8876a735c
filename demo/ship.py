"""The worker of the demo: writes a label for each order until SIGTERM. With --fixed it also knows Kosovo.

python ship.py [--fixed]
"""

import asyncio
import os
import signal
import sys
from collections import Counter

from headrace import AsyncClient, AsyncMessage

COUNTRIES = {"DE": "Germany", "NO": "Norway", "PT": "Portugal"} | ({"XK": "Kosovo"} if "--fixed" in sys.argv else {})


async def main(address: str) -> None:
    counts: Counter[str] = Counter()

    async def ship(message: AsyncMessage) -> None:
        order = message.json()
        counts["deliveries"] += 1
        if order["id"] % 50 == 0 and message.attempt == 1:
            raise ConnectionError("the carrier does not respond")  # succeeds at the next attempt
        COUNTRIES[order["country"]]  # a KeyError is a bug: every attempt fails
        counts["labels"] += 1

    async with AsyncClient(address) as client:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop)
        await client.work("orders", "shipping", ship, concurrency=16)
    print(f"{counts['labels']} labels written in {counts['deliveries']} deliveries")


asyncio.run(main(os.environ["HEADRACE_SERVER"]))
