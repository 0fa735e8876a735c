"""The process of an administrator: change topics and replicas at random while faults happen, until SIGTERM.

    python -m tests.chaos.admin_client SEED BOOTSTRAP BROKERS

The process prints each operation when it begins, and again when the cluster confirms it, with the nanoseconds of the
monotonic clock. An unconfirmed operation may take effect at any later time, or never:

    ["do", number, began, kind, arguments]      ["done", number, ended]      ["error", at, text]      ["end", at]

| kind     | arguments                          | target |
| -------- | ---------------------------------- | --- |
| create   | topic, partitions, configs         | `scratch-N`, a new name or the name of a deleted topic |
| delete   | topic                              | the same |
| write    | topic, value                       | the same: one record with acks=all |
| grow     | topic, partitions                  | also `changing` and `jobs` |
| config   | topic, name, value                 | also `changing` |
| trim     | topic, partition, offset           | `changing`: DeleteRecords |
| reassign | topic, partition, replicas         | any topic with a workload |
| drain    | broker, drained                    | one broker at a time, with more than three brokers |

On SIGTERM the drained broker is brought back.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.chaos.client import emit
from tests.chaos.names import CHANGING, COPIES, JOBS, NUMBERS, REPLICAS, SCRATCH

from headrace import AsyncClient
from headrace.client.admin.cluster_admin import ClusterAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, connect
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError

SETTINGS = ClientSettings(dial_timeout_seconds=2.0, request_timeout_seconds=5.0, deadline_seconds=15.0)
REPEATED_NS = int(0.9e9 * SETTINGS.request_timeout_seconds)
"""A request may have been repeated, with its first attempt still in flight, if the operation took this long."""
PAUSE_SECONDS = (0.2, 1.5)
SCRATCH_TOPICS_MAX = 4
PARTITIONS_MAX = 8
GROWTH_SECONDS = 20.0
"""`changing` and `jobs` grow at most this often, so that a long run does not reach `PARTITIONS_MAX` at its start."""
UNDO_SECONDS = 120.0
CONFIGS = {"retention.ms": 36_000_000, "max.message.bytes": 1_048_588, "segment.bytes": 1_048_576}
"""Each change adds the operation's number to one of these, so that every value is unique."""


def main(seed: str, bootstrap: str, brokers: str) -> None:
    asyncio.run(_main(seed, bootstrap, [int(number) for number in brokers.split(",")]))
    emit("end", time.monotonic_ns())
    sys.stdout.flush()


async def _main(seed: str, bootstrap: str, brokers: list[int]) -> None:
    async with AsyncClient(cluster=connect(bootstrap, SETTINGS), create_topics=False) as client:
        administrator = Administrator(client, random.Random(f"administration {seed}"), brokers)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, administrator.stop)
        await administrator.run()


class Administrator:
    def __init__(self, client: AsyncClient, chance: random.Random, brokers: list[int]) -> None:
        self._client, self._chance, self._brokers = client, chance, brokers
        self._topics, self._cluster = TopicAdmin(client.cluster), ClusterAdmin(client.cluster)
        self._is_stopped = False
        self._number = 0
        self._scratch: dict[str, int] = {}
        """partitions of the topics whose creation was confirmed"""
        self._deleted: list[str] = []
        self._in_doubt: set[str] = set()
        """topics with an operation that may still take effect; their names are never used again"""
        self._grown: dict[str, float] = {}
        self._drained: int | None = None
        self._operations: list[Callable[[], Awaitable[None]]] = [
            *(self._create, self._delete, self._write, self._write, self._grow, self._config),
            *(self._trim, self._reassign, self._reassign),
        ]
        if len(brokers) > REPLICAS:
            self._operations.append(self._drain)

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self) -> None:
        while not self._is_stopped:
            try:
                await self._chance.choice(self._operations)()
            except HeadraceError as error:
                emit("error", time.monotonic_ns(), repr(error))
            sys.stdout.flush()
            await asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS))
        give_up = time.monotonic() + UNDO_SECONDS
        while self._drained is not None and time.monotonic() < give_up:
            await self._drain()

    async def _do(self, kind: str, action: Callable[[], Awaitable[Any]], **arguments: Any) -> bool:
        """Perform an operation; return whether the cluster confirmed it."""
        number, self._number = self._number, self._number + 1
        began = time.monotonic_ns()
        emit("do", number, began, kind, arguments)
        sys.stdout.flush()
        try:
            failed = await action()
            if kind == "reassign" and failed:
                (error,) = failed.values()
                raise error
        except HeadraceError as error:
            self._in_doubt.add(arguments.get("topic", ""))
            emit("error", time.monotonic_ns(), f"{kind} {arguments}: {error!r}")
            return False
        ended = time.monotonic_ns()
        if ended - began >= REPEATED_NS:
            self._in_doubt.add(arguments.get("topic", ""))
        emit("done", number, ended)
        return True

    async def _create(self) -> None:
        if len(self._scratch) >= SCRATCH_TOPICS_MAX:
            return
        name = f"{SCRATCH}{self._number}"
        if self._deleted and self._chance.random() < 0.5:
            name = self._deleted.pop(self._chance.randrange(len(self._deleted)))
        count, configs = self._chance.randint(1, 3), {"retention.ms": str(CONFIGS["retention.ms"] + self._number)}
        topic = NewTopic(name, count, self._chance.choice((2, REPLICAS)), configs)
        if await self._do("create", lambda: self._topics.create(topic), topic=name, partitions=count, configs=configs):
            self._scratch[name] = count

    async def _delete(self) -> None:
        if not self._scratch:
            return
        name = self._chance.choice(sorted(self._scratch))
        del self._scratch[name]
        if await self._do("delete", lambda: self._topics.delete(name), topic=name) and name not in self._in_doubt:
            self._deleted.append(name)

    async def _write(self) -> None:
        if not self._scratch:
            return
        name = self._chance.choice(sorted(self._scratch))
        value = f"{name} {self._number}"
        await self._do("write", lambda: self._client.publish(name, value.encode()), topic=name, value=value)

    async def _grow(self) -> None:
        name = self._chance.choice([CHANGING, JOBS, *sorted(self._scratch)])
        if time.monotonic() < self._grown.get(name, 0.0) + GROWTH_SECONDS:
            return
        count = len((await self._topics.describe(name)).partitions) + 1
        if count <= PARTITIONS_MAX:
            self._grown[name] = time.monotonic()
            await self._do("grow", lambda: self._topics.add_partitions(name, count), topic=name, partitions=count)

    async def _config(self) -> None:
        name = self._chance.choice([CHANGING, *sorted(self._scratch)])
        config = self._chance.choice(sorted(CONFIGS))
        value = str(CONFIGS[config] + self._number)
        change = {config: value}
        await self._do(
            "config", lambda: self._topics.alter_configs(name, set_to=change), topic=name, name=config, value=value
        )

    async def _trim(self) -> None:
        """Delete up to a random offset below the high watermark; sometimes all records."""
        partitions = len((await self._topics.describe(CHANGING)).partitions)
        target = TopicPartition(CHANGING, self._chance.randrange(partitions))
        start, end = [
            (await find_offsets(self._client.cluster, {target: bound}))[target].offset for bound in (START, END)
        ]
        offset = end if self._chance.random() < 0.2 else self._chance.randint(start, end)
        if offset > start:
            await self._do(
                "trim",
                lambda: self._topics.trim({target: offset}),
                topic=CHANGING,
                partition=target.partition,
                offset=offset,
            )

    async def _reassign(self) -> None:
        name = self._chance.choice([CHANGING, CHANGING, NUMBERS, COPIES, JOBS, *sorted(self._scratch)])
        view = self._chance.choice((await self._topics.describe(name)).partitions)
        candidates = [number for number in self._brokers if number != self._drained]
        count = 2 if name == CHANGING else min(REPLICAS, len(candidates))
        replicas = self._chance.sample(candidates, count)
        target = TopicPartition(name, view.partition)
        await self._do(
            "reassign",
            lambda: self._cluster.move({target: replicas}),
            topic=name,
            partition=view.partition,
            replicas=replicas,
        )

    async def _drain(self) -> None:
        """Drain a broker, or bring back the drained one."""
        is_drained = self._drained is None
        broker = self._chance.choice(self._brokers) if self._drained is None else self._drained
        self._drained = broker  # also if unconfirmed: it may be drained
        confirmed = await self._do(
            "drain", lambda: self._cluster.drain(broker, is_drained=is_drained), broker=broker, drained=is_drained
        )
        if confirmed and not is_drained:
            self._drained = None


if __name__ == "__main__":
    main(*sys.argv[1:])
