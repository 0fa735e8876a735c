"""Dead letters over REST: only those of the subscription, redriven or discarded in bounded steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.protocols.rest.rest_queue_support import RestQueues, die, with_queues

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.model.tokens import Scope
from headrace.protocols.rest.authorization import Principal

LETTERS = "/subscriptions/workers/dead-letters"
REDRIVE = "/subscriptions/workers/redrive"
DISCARD = "/subscriptions/workers/discard"


async def left(queues: RestQueues) -> list[str]:
    return [letter["value_base64"] for letter in (await queues.get(LETTERS))["dead_letters"]]


def test_a_subscription_without_dead_letters() -> None:
    async def scenario(queues: RestQueues) -> None:
        assert await queues.get(LETTERS) == {"dead_letters": [], "more": False}
        for url, body in ((REDRIVE, {}), (DISCARD, {"all": True})):
            response = await queues.post(url, body)
            assert (response["settled"], response["left"], response["complete"]) == (0, 0, True)

    with_queues(scenario)


def test_dead_letters_are_listed_with_their_origin_for_their_subscription_only() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, b'{"a":1}')
        await die(queues, b"theirs", name="others")
        forged = [("headrace-dead-subscription", b"workers"), ("headrace-dead-topic", b"jobs")]
        await queues.put(b"forged", topic="jobs.dlq", headers=forged)  # type: ignore[arg-type]
        (letter,) = (await queues.get(LETTERS))["dead_letters"]
        assert letter["message_id"] == "jobs.dlq:0:0"
        assert (letter["origin"], letter["attempts"], letter["reason"]) == ("jobs:0:0", 5, "boom")
        assert (letter["state"], letter["redriven"], letter["key"]) == ("ready", 0, "k")
        assert letter["value"] == {"a": 1}
        assert letter["died_at"].endswith("Z")

    with_queues(scenario)


def test_lists_are_bounded_and_filtered() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, b"a1", b"b1", b"a2")
        response = await queues.get(f"{LETTERS}?limit=2")
        assert (len(response["dead_letters"]), response["more"]) == (2, True)
        response = await queues.get(f"{LETTERS}?filter=header.type%20=%20'a'")
        assert (len(response["dead_letters"]), response["more"]) == (2, False)
        refused = await queues.ask("GET", f"{LETTERS}?filter=((")
        assert (refused.status, refused.body["code"]) == (422, "invalid_parameter")

    with_queues(scenario)


def test_redriven_messages_are_delivered_again() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.post("/subscriptions/workers/seek", {"to": "end"})
        await die(queues, b"a", b"b")
        await queues.post("/subscriptions/workers/seek", {"to": "end"})
        await die(queues, b"theirs", name="others")
        tried = await queues.post(REDRIVE, {"dry_run": True})
        assert (tried["settled"], tried["left"]) == (2, 3)
        response = await queues.post(REDRIVE, {})
        assert response == {
            "settled": 2,
            "settled_before": 0,
            "refused": 0,
            "refusals": [],
            "complete": True,
            "left": 1,
        }
        values = [one["value_base64"] for one in await queues.pull()]
        assert sorted(values) == ["YQ==", "Yg==", "dGhlaXJz"], "the last message was not delivered before"
        assert await left(queues) == []
        everything = (await queues.get(f"{LETTERS}?settled=true"))["dead_letters"]
        assert [one["state"] for one in everything] == ["settled", "settled"]
        assert (await queues.post(REDRIVE, {}))["settled"] == 0
        refused = await queues.ask("GET", f"{LETTERS}?settled=yes")
        assert (refused.status, refused.body["code"]) == (422, "invalid_parameter")

    with_queues(scenario)


def test_a_long_redrive_continues_in_the_next_request() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, *(b"%d" % number for number in range(7)))
        steps = [await queues.post(REDRIVE, {"max": 3}) for _ in range(3)]
        assert [(one["settled"], one["complete"], one["left"]) for one in steps] == [
            (3, False, 4),
            (3, False, 1),
            (1, True, 0),
        ]

    with_queues(scenario)


def test_a_redrive_is_bounded_in_time() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, *(b"%d" % number for number in range(60)))
        began = queues.cluster.clock.monotonic()
        response = await queues.post(REDRIVE, {"rate": 1})
        assert 15 <= response["settled"] <= 30
        assert not response["complete"]
        assert queues.cluster.clock.monotonic() - began < 30

    with_queues(scenario)


def test_single_dead_letters_can_be_redriven_to_another_topic() -> None:
    async def scenario(queues: RestQueues) -> None:
        await TopicAdmin(queues.cluster).create(NewTopic("repaired", 1))
        await queues.subscribe("repairers", "repaired")
        await die(queues, b"a", b"b")
        await die(queues, b"theirs", name="others")
        response = await queues.post(REDRIVE, {"message_ids": ["jobs.dlq:0:1"], "to": "repaired"})
        assert response["settled"] == 1
        assert [one["value_base64"] for one in await queues.pull(name="repairers")] == ["Yg=="]
        refused = await queues.ask("POST", REDRIVE, {"message_ids": ["jobs.dlq:0:2"]})
        assert (refused.status, refused.body["code"]) == (422, "invalid_request")
        assert await left(queues) == ["YQ=="]

    with_queues(scenario)


def test_redriving_to_another_topic_requires_permission_to_publish() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, b"a")
        await TopicAdmin(queues.cluster).create(NewTopic("repaired", 1))
        queues.caller = Principal("ops", "t-1", (Scope("manage", "jobs"),))
        response = await queues.ask("POST", REDRIVE, {"to": "repaired"})
        assert (response.status, response.body["code"]) == (403, "scope_missing")
        response = await queues.ask("POST", REDRIVE, {"to": "__acks.jobs"})
        assert response.status == 403
        assert await left(queues) == ["YQ=="]

    with_queues(scenario)


async def reject_one(queues: RestQueues, name: str = "workers") -> str:
    """Reject the next message, and wait for its dead letter. Returns the id of the message."""
    (message,) = await queues.pull(name=name)
    await queues.post(f"/subscriptions/{name}/reject", {"receipt": message["receipt"]})
    await asyncio.sleep(1)  # of simulated time
    return str(message["message_id"])


def test_dead_letters_redriven_too_often_are_reported() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"a")
        rejected = await reject_one(queues)
        assert (await queues.post(REDRIVE, {}))["settled"] == 1
        assert await reject_one(queues) == rejected
        (letter,) = (await queues.get(LETTERS))["dead_letters"]
        assert letter["redriven"] == 1
        response = await queues.post(REDRIVE, {"max_redrives": 1})
        assert (response["settled"], response["refused"]) == (0, 1)
        assert "came back 1 times" in response["refusals"][0]["message"]

    with_queues(scenario)


def test_other_subscriptions_receive_a_redriven_message_only_on_request() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.subscribe("others")
        await queues.put(b"a")
        (theirs,) = await queues.pull(name="others")
        await queues.post("/subscriptions/others/ack", {"receipt": theirs["receipt"]})
        rejected = await reject_one(queues)
        assert (await queues.post(REDRIVE, {}))["settled"] == 1
        assert await queues.pull(name="others") == []
        assert await reject_one(queues) == rejected
        assert (await queues.post(REDRIVE, {"to_all": True}))["settled"] == 1
        assert [one["value_base64"] for one in await queues.pull(name="others")] == ["YQ=="]
        (copy,) = await queues.pull()
        assert (copy["message_id"] != rejected, copy["headers"]["headrace-redriven"]) == (True, "2")

    with_queues(scenario)


def test_a_message_that_the_topic_no_longer_has_is_reported_with_the_alternative() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"a")
        await reject_one(queues)
        partition = queues.broker.catalogue.partition("jobs", 0)
        await partition.log.advance_start(1)
        response = await queues.post(REDRIVE, {})
        assert (response["settled"], response["refused"]) == (0, 1)
        why = response["refusals"][0]["message"]
        assert why.startswith("topic jobs no longer keeps message 0; a copy can be published for all subscriptions")
        assert (await queues.post(REDRIVE, {"to_all": True}))["settled"] == 1

    with_queues(scenario)


def test_a_redrive_has_one_target() -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", REDRIVE, {"to": "repaired", "to_all": True})
        assert (response.status, response.body["code"]) == (422, "invalid_body")

    with_queues(scenario)


def test_discarding_requires_a_selection() -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, b"a", b"b", b"c")
        response = await queues.ask("POST", DISCARD, {})
        assert (response.status, response.body["code"]) == (422, "invalid_body")
        assert (await queues.post(DISCARD, {"filter": "header.type = 'b'"}))["settled"] == 1
        assert await left(queues) == ["YQ==", "Yw=="]
        assert (await queues.post(DISCARD, {"message_ids": ["jobs.dlq:0:0"]}))["settled"] == 1
        assert (await queues.post(DISCARD, {"all": True, "dry_run": True}))["settled"] == 1
        assert (await queues.post(DISCARD, {"all": True}))["left"] == 0

    with_queues(scenario)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"max": 0}, "invalid_body"),
        ({"rate": 0}, "invalid_body"),
        ({"message_ids": []}, "invalid_body"),
        ({"message_ids": ["x"]}, "invalid_message_id"),
        ({"message_ids": ["jobs:0:0"]}, "other_topic"),
        ({"message_ids": ["jobs.dlq:0:99"]}, "invalid_request"),
        ({"filter": "(("}, "invalid_parameter"),
        ({"to": "jobs.dlq"}, "invalid_topic"),
    ],
)
def test_invalid_requests_are_rejected(body: Any, code: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        await die(queues, b"a")
        response = await queues.ask("POST", REDRIVE, body)
        assert (response.status, response.body["code"]) == (422, code)
        assert await left(queues) == ["YQ=="]

    with_queues(scenario)
