"""Dead letters belong to the topic that had the name when their messages died, and not to a later one of that name."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.produce.producer import Producer
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.redrive import RedriveOptions
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.message_headers import DeadLetterOrigin, with_dead_letter_headers

LETTERS = "/subscriptions/workers/dead-letters?topic=invoices"
REDRIVE = "/subscriptions/workers/redrive?topic=invoices"
DISCARD = "/subscriptions/workers/discard?topic=invoices"
PUSH = {"url": "https://first.example/hook"}


async def make_topic(stage: RestHarness, **headers: str) -> None:
    assert (await stage.ask("POST", "/topics", {"name": "invoices"}, **headers)).status == 201
    body = {"name": "workers", "start": "earliest"}
    assert (await stage.ask("POST", "/topics/invoices/subscriptions", body, **headers)).status == 201


async def delete_topic(stage: RestHarness, **headers: str) -> None:
    assert (await stage.ask("DELETE", "/topics/invoices", **headers)).status == 204


async def die(stage: RestHarness, value: Any, **headers: str) -> None:
    """Publish a message, and reject it."""
    await stage.publish("invoices", value, **headers)
    told = await stage.ask("GET", "/subscriptions/workers/messages?topic=invoices", **headers)
    (message,) = told.json["messages"]
    body = {"receipt": message["receipt"]}
    told = await stage.ask("POST", "/subscriptions/workers/reject?topic=invoices", body, **headers)
    assert told.status == 200
    while value not in await held(stage):
        await asyncio.sleep(0.1)


async def letters(stage: RestHarness, **headers: str) -> list[Any]:
    told = await stage.ask("GET", LETTERS, **headers)
    assert told.status == 200, told.raw
    return [letter["value"] for letter in told.json["dead_letters"]]


async def held(stage: RestHarness, queue: str = "invoices.dlq") -> list[Any]:
    """What the dead-letter topic holds; of the topic `invoices`, if that is named."""
    import msgspec

    try:
        return [
            msgspec.json.decode(one.record.value or b"")
            async for one, _ in DeadLetterQueue(stage.cluster, queue).letters()
        ]
    except UnknownTopicOrPartition:
        return []


def test_a_topic_that_is_created_again_does_not_show_or_redrive_the_dead_letters_of_its_predecessor() -> None:
    async def scenario(stage: RestHarness) -> None:
        first = {"authorization": await stage.token("manage:*", name="first")}
        await make_topic(stage, **first)
        await die(stage, "secret of first", **first)
        await delete_topic(stage, **first)

        second = {"authorization": await stage.token("manage:*", name="second")}
        await make_topic(stage, **second)
        assert await letters(stage, **second) == []
        for url, body in ((REDRIVE, {}), (DISCARD, {"all": True})):
            told = await stage.ask("POST", url, body, **second)
            assert (told.json["settled"], told.json["left"]) == (0, 0)
        assert await held(stage, "invoices") == []
        await die(stage, "of second", **second)
        assert await letters(stage, **second) == await held(stage) == ["of second"]

    with_rest_harness(scenario, with_auth=True)


def test_the_dead_letter_topic_of_a_deleted_topic_does_not_push_the_letters_of_the_next_one() -> None:
    async def scenario(stage: RestHarness) -> None:
        await make_topic(stage)
        await die(stage, 1)
        body = {"name": "watchers", "push": PUSH}
        assert (await stage.ask("POST", "/topics/invoices.dlq/subscriptions", body)).status == 201
        await delete_topic(stage)
        assert (await stage.ask("GET", "/topics/invoices.dlq")).status == 404
        await make_topic(stage)
        await die(stage, 2)
        told = await stage.ask("GET", "/topics/invoices.dlq/subscriptions")
        assert "watchers" not in told.raw.decode()

    with_rest_harness(scenario)


def test_a_dead_letter_topic_that_a_client_created_stays_and_keeps_topics_of_one_name_apart() -> None:
    async def scenario(stage: RestHarness) -> None:
        await TopicAdmin(stage.cluster).create(NewTopic("invoices.dlq", 1))
        await make_topic(stage)
        await die(stage, "first")
        await delete_topic(stage)
        await make_topic(stage)
        assert await held(stage) == ["first"]
        assert await letters(stage) == await held(stage, "invoices") == []
        assert (await stage.ask("POST", REDRIVE, {})).json["settled"] == 0
        told = await stage.ask("POST", REDRIVE, {"message_ids": ["invoices.dlq:0:0"]})
        assert (told.status, told.code) == (422, "invalid_request")
        await die(stage, "second")  # at the same offset, for the same subscription, after as many attempts
        assert await letters(stage) == await held(stage, "invoices") == ["second"]
        assert await held(stage) == ["first", "second"]

    with_rest_harness(scenario)


def test_letters_of_an_earlier_topic_are_sent_back_only_to_a_topic_that_is_named() -> None:
    async def scenario(stage: RestHarness) -> None:
        admin = TopicAdmin(stage.cluster)
        await admin.create(NewTopic("invoices.dlq", 1))
        await make_topic(stage)
        await die(stage, "first")
        await delete_topic(stage)
        await make_topic(stage)
        queue = DeadLetterQueue(stage.cluster, "invoices.dlq")
        outcome = await queue.redrive(DeadLetterSelection())
        ((_, why),) = outcome.refused
        assert (outcome.settled, "earlier topic invoices" in why) == (0, True)
        await admin.create(NewTopic("repaired", 1))
        assert (await queue.redrive(DeadLetterSelection(), RedriveOptions("repaired"))).settled == 1

    with_rest_harness(scenario)


def test_letters_without_the_id_of_their_topic_are_for_callers_who_may_use_the_dead_letter_topic() -> None:
    async def scenario(stage: RestHarness) -> None:
        await TopicAdmin(stage.cluster).create(NewTopic("invoices.dlq", 1))
        of_an_earlier_version = with_dead_letter_headers(
            [], DeadLetterOrigin("boom", 5, "workers", "invoices", 0, 0, 1)
        )
        async with Producer(stage.cluster) as producer:
            await producer.publish("invoices.dlq", b'"old"', headers=of_an_earlier_version)
        await make_topic(stage, authorization=await stage.token("manage:*"))
        narrow = {"authorization": await stage.token("manage:invoices")}
        wide = {"authorization": await stage.token("manage:invoices*")}
        reader = {"authorization": await stage.token("read:invoices*", "manage:invoices")}
        assert await letters(stage, **narrow) == []
        assert (await stage.ask("POST", REDRIVE, {}, **narrow)).json["settled"] == 0
        assert await letters(stage, **reader) == ["old"]
        assert (await stage.ask("POST", REDRIVE, {}, **reader)).json["settled"] == 0
        assert await letters(stage, **wide) == ["old"]
        told = (await stage.ask("POST", REDRIVE, {}, **wide)).json
        assert (told["settled"], told["refused"]) == (0, 1)
        assert "to_all" in told["refusals"][0]["message"]
        assert (await stage.ask("POST", REDRIVE, {"to_all": True}, **wide)).json["settled"] == 1

    with_rest_harness(scenario, with_auth=True)


def test_a_redrive_ends_when_its_topic_is_created_again_meanwhile() -> None:
    async def scenario(stage: RestHarness) -> None:
        await TopicAdmin(stage.cluster).create(NewTopic("invoices.dlq", 1))
        await make_topic(stage)
        for number in range(12):
            await die(stage, number)
        redrive = asyncio.create_task(stage.ask("POST", REDRIVE, {"rate": 1}))
        await asyncio.sleep(2.5)  # of simulated time
        await delete_topic(stage)
        await make_topic(stage)
        told = await redrive
        assert (told.status, told.code) == (404, "topic_not_found")
        assert [partition.log.end_offset for partition in stage.broker.catalogue.topic("invoices").led.values()] == [0]

    with_rest_harness(scenario)
