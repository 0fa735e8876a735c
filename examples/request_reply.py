"""Request and reply: send a request through the queue and get the reply of the first free worker.

python request_reply.py [ADDRESS]
"""

import sys
import threading
from typing import Any

from headrace import Client, Message

PRICES = {"lamp": 30, "desk": 250}


def price_of(message: Message) -> dict[str, Any]:
    """The worker's side: the return value is the reply."""
    item = message.json()["item"]
    return {"item": item, "price": PRICES.get(item)}


def main(address: str) -> None:
    with Client(address) as service, Client(address) as shop:
        worker = threading.Thread(target=service.respond, args=["prices", "price-service", price_of])
        worker.start()
        for item in ("lamp", "desk", "chair"):
            reply = shop.request("prices", {"item": item}, timeout="10s").json()
            print(f"{reply['item']} costs {reply['price'] or 'we do not know what'}")
        service.stop()  # replies to the requests in progress and takes no more
        worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["127.0.0.1:9092"])
