"""E-mail dispatch: retry failed mails with back-off, and turn mails that cannot be sent into dead letters.

python email_dispatch.py [ADDRESS]
"""

import asyncio
import sys
from dataclasses import dataclass

from headrace import AsyncClient, AsyncMessage, Reject


@dataclass
class Mail:
    to: str
    subject: str


MAILS = [
    Mail("ada@example.org", "Your order"),
    Mail("grace@busy.example.org", "Your invoice"),  # its server is busy at first
    Mail("nobody", "Hello?"),  # not a valid address
    Mail("alan@gone.example.org", "Your order"),  # its server never responds
]


def deliver(mail: Mail, attempt: int) -> None:
    """Stands in for an SMTP server."""
    if "@" not in mail.to:
        raise Reject(f"{mail.to!r} is not an address")  # retrying would not help
    if "gone" in mail.to or ("busy" in mail.to and attempt < 3):
        raise ConnectionError(f"the server of {mail.to} does not respond")


async def main(address: str) -> None:
    async with AsyncClient(address) as client:
        await client.create_subscription(
            "mails",
            "dispatch",
            configs={
                "share.delivery.count.limit": "4",  # then the message becomes a dead letter
                "headrace.retry.backoff.ms": "50",  # 50 ms, 100 ms, 200 ms, each with some jitter
            },
        )
        await client.publish_many("mails", MAILS)
        sent: list[str] = []

        async def dispatch(message: AsyncMessage) -> None:
            mail = message.json(Mail)
            deliver(mail, message.attempt)  # on any exception, the message is delivered again
            sent.append(mail.to)
            print(f"sent {mail.subject!r} to {mail.to} at attempt {message.attempt}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.work("mails", "dispatch", dispatch, concurrency=16))
            while len(sent) < 2 or len(await client.dead_letters("mails")) < 2:
                await asyncio.sleep(0.05)
            client.stop()  # a service would call this on SIGTERM

        for letter in await client.dead_letters("mails"):
            assert letter.death is not None
            print(f"dead: {letter.record.value!r} after {letter.death.attempts}: {letter.death.reason}")
        result = await client.redrive("mails")  # when the cause is fixed, send them back
        print(f"{result.settled} dead letters were sent back")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["127.0.0.1:9092"]))
