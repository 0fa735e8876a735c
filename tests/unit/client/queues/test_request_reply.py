"""Requests and replies through a real broker: each reply reaches its request, and no topic is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import END, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.client.queues.request_reply import Requests, RequestSettings, Responder
from headrace.model.errors import RequestTimedOut
from headrace.model.message_headers import (
    CORRELATION_ID,
    EXPIRES_AT,
    REPLY_TO,
    InvalidHeader,
    header_text,
    header_value,
)
from headrace.testkit.world import World


class ReceivedRequest:
    def __init__(self, *headers: tuple[str, bytes | None]) -> None:
        self.headers: Sequence[tuple[str, bytes | None]] = headers


async def double(request: ConsumedRecord) -> bytes:
    assert request.value is not None
    return request.value * 2


async def answer_all(cluster: Cluster) -> None:
    async with Responder(cluster) as responder, Consumer(cluster, ["questions"]) as consumer:
        await responder.answer(consumer, double)


async def next_of(topic: str, cluster: Cluster, offset: int) -> ConsumedRecord:
    async with Consumer(cluster, partitions={TopicPartition(topic, 0): offset}) as consumer:
        return (await consumer.poll(1))[0]


async def topics(cluster: Cluster) -> list[str]:
    return [topic.name for topic in await TopicAdmin(cluster).list()]


def test_every_request_gets_its_own_reply() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, client(world, "there") as other:
            await TopicAdmin(cluster).create(NewTopic("questions", 2))
            answering = asyncio.create_task(answer_all(other))
            async with Requests(cluster) as requests:
                assert (await requests.request("questions", b"a")).value == b"aa"
                async with asyncio.TaskGroup() as tasks:
                    requested = [tasks.create_task(requests.request("questions", b"%d;" % at)) for at in range(20)]
                assert [task.result().value for task in requested] == [b"%d;%d;" % (at, at) for at in range(20)]
            answering.cancel()

    in_world(scenario)


def test_requests_get_replies_again_after_the_reply_topic_has_expired() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, client(world, "there") as other:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            answering = asyncio.create_task(answer_all(other))
            async with Requests(cluster, RequestSettings(timeout_seconds=20)) as requests:
                assert (await requests.request("questions", b"a")).value == b"aa"
                await TopicAdmin(other).delete(requests.reply_topic)  # as the broker does while this client is cut off
                with pytest.raises(RequestTimedOut):
                    await requests.request("questions", b"b")
                assert (await requests.request("questions", b"c")).value == b"cc"
                configs = {one.name: one.value for one in await TopicAdmin(cluster).configs(requests.reply_topic)}
                assert configs["expire.after.idle.ms"] == "3600000"
            answering.cancel()

    in_world(scenario)


def test_two_clients_have_their_own_replies() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, client(world, "there") as other:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            answering = asyncio.create_task(answer_all(other))
            async with Requests(cluster) as mine, Requests(other) as theirs:
                assert mine.reply_topic != theirs.reply_topic
                assert (await mine.request("questions", b"a")).value == b"aa"
                assert (await theirs.request("questions", b"b")).value == b"bb"
            answering.cancel()

    in_world(scenario)


def test_a_request_without_a_reply_times_out() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            async with Requests(cluster) as requests:
                began = cluster.clock.monotonic()
                with pytest.raises(RequestTimedOut, match="no reply to a request in questions within 2 s"):
                    await requests.request("questions", b"a", timeout_seconds=2)
                assert 2 <= cluster.clock.monotonic() - began < 2.1
                assert requests._waiting == {}

    in_world(scenario)


def test_a_request_has_its_reply_topic_and_deadline() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            async with Requests(cluster) as requests:
                now_ms = cluster.clock.now_ms()
                pending = asyncio.create_task(
                    requests.request("questions", b"a", key=b"k", headers=[("x", b"1")], timeout_seconds=5)
                )
                async with Consumer(cluster, ["questions"]) as consumer, Responder(cluster) as responder:
                    (requested,) = await consumer.poll(1)
                    assert (requested.key, header_value(requested.headers, "x")) == (b"k", b"1")
                    assert header_text(requested.headers, REPLY_TO) == requests.reply_topic
                    assert now_ms <= int(header_text(requested.headers, EXPIRES_AT) or "") - 5000 <= now_ms + 1000
                    stranger = ReceivedRequest((REPLY_TO, requests.reply_topic.encode()), (CORRELATION_ID, b"other"))
                    assert await responder.reply(stranger, b"not this one")
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(responder.reply(requested, b"this one", headers=[("y", b"2")]))
                        tasks.create_task(responder.reply(requested, b"nor this one"))
                reply = await pending
                assert (reply.value, header_value(reply.headers, "y")) == (b"this one", b"2")
                pending = asyncio.create_task(requests.request("questions", b"b", timeout_seconds=5))
                async with Responder(cluster) as responder:
                    await responder.reply(await next_of("questions", cluster, 1), b"and the next one")
                assert (await pending).value == b"and the next one"

    in_world(scenario)


def test_a_message_without_a_reply_topic_gets_no_reply() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            worked_on: list[bytes | None] = []

            async def work(request: ConsumedRecord) -> None:
                worked_on.append(request.value)

            async with Producer(cluster) as producer, Responder(cluster) as responder:
                with pytest.raises(InvalidHeader, match="asks for no reply"):
                    await responder.reply(ReceivedRequest((REPLY_TO, b"questions")), b"a")
                await producer.publish("questions", b"no question")
                async with Consumer(cluster, ["questions"]) as consumer:
                    answering = asyncio.create_task(responder.answer(consumer, work))
                    await asyncio.sleep(1)
                    answering.cancel()
            assert worked_on == [b"no question"]

    in_world(scenario)


def test_replies_are_sent_only_to_reply_topics() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("ledger", 1))
            async with Responder(cluster) as responder:
                forged = ReceivedRequest((REPLY_TO, b"ledger"), (CORRELATION_ID, b"1"))
                with pytest.raises(InvalidHeader, match="no topic for replies"):
                    await responder.reply(forged, b"forged entry")
            ends = await find_offsets(cluster, {TopicPartition("ledger", 0): END})
            assert ends[TopicPartition("ledger", 0)].offset == 0

    in_world(scenario)


def test_the_reply_topic_is_deleted_with_its_client() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            async with Requests(cluster) as requests:
                assert requests.reply_topic in await topics(cluster)
            assert await topics(cluster) == []

    in_world(scenario)


def test_the_reply_topic_of_a_crashed_client_expires() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        settings = RequestSettings(idle_seconds=30)
        async with client(world) as cluster:
            requests = await Requests(cluster, settings).__aenter__()
            await asyncio.sleep(120)
            assert requests.reply_topic in await topics(cluster)
            await requests._tasks.stop()
            await asyncio.sleep(40)
            assert await topics(cluster) == []
            async with Responder(cluster) as responder:
                requested = ReceivedRequest((REPLY_TO, requests.reply_topic.encode()), (CORRELATION_ID, b"1"))
                assert not await responder.reply(requested, b"too late")
            assert await topics(cluster) == []

    in_world(scenario)


def test_closing_fails_pending_requests() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("questions", 1))
            async with Requests(cluster) as requests:
                pending = asyncio.create_task(requests.request("questions", b"a"))
                await asyncio.sleep(1)
            with pytest.raises(RequestTimedOut, match="closed before the reply came"):
                await pending
            with pytest.raises(RequestTimedOut, match="closed"):
                await requests.request("questions", b"a")

    in_world(scenario)
