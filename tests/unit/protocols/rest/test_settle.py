"""Settling over REST: by receipt and by id, one and many, and the codes of errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.protocols.rest.rest_queue_support import RestQueues, another, with_queues

from headrace.wire.messages.queues import SettleRequest

SETTLED = {"settled": 1, "refused": []}


async def backlog(queues: RestQueues) -> int:
    return int((await queues.get("/topics/jobs/subscriptions/workers"))["backlog"])


@pytest.mark.parametrize("by", ["receipt", "message_id"])
def test_an_acked_message_is_settled_at_every_gateway(by: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1", b"2")
        first, second = await queues.pull()
        assert await queues.post("/subscriptions/workers/ack", {by: first[by]}) == SETTLED
        assert await another(queues).post("/subscriptions/workers/ack", {by: second[by]}) == SETTLED
        assert await backlog(queues) == 0

    with_queues(scenario)


def test_an_expired_receipt_is_rejected_and_the_id_settles_the_current_lease() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1")
        (late,) = await queues.pull("lease=1s")
        await asyncio.sleep(2)
        by_id = await queues.ask("POST", "/subscriptions/workers/ack", {"message_id": late["message_id"]})
        assert (by_id.status, by_id.body["code"]) == (409, "lease_lost")
        (again,) = await queues.pull()
        assert again["attempt"] == 2
        response = await queues.ask("POST", "/subscriptions/workers/ack", {"receipt": late["receipt"]})
        assert (response.status, response.body["code"]) == (409, "lease_lost")
        assert response.body["next"]
        assert await queues.post("/subscriptions/workers/ack", {"message_id": late["message_id"]}) == SETTLED
        response = await queues.ask("POST", "/subscriptions/workers/ack", {"receipt": again["receipt"]})
        assert response.status == 409

    with_queues(scenario)


def test_each_receipt_of_a_request_has_its_own_result() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(*(b"%d" % number for number in range(100)))
        messages = await queues.pull("max_messages=100")
        receipts = [one["receipt"] for one in messages]
        assert await queues.post("/subscriptions/workers/ack", {"receipt": receipts[7]}) == SETTLED
        body = {"receipts": [*receipts, "nonsense", receipts[0].replace("jobs:", "other:"), receipts[8]]}
        response = await queues.post("/subscriptions/workers/ack", body)
        assert response["settled"] == 99
        assert {(one["receipt"], one["code"]) for one in response["refused"]} == {
            (receipts[7], "lease_lost"),
            ("nonsense", "invalid_receipt"),
            (receipts[0].replace("jobs:", "other:"), "other_topic"),
        }
        assert await backlog(queues) == 0

    with_queues(scenario)


def test_several_messages_are_settled_by_their_ids() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(*(b"%d" % number for number in range(10)))
        ids = [one["message_id"] for one in await queues.pull("max_messages=9")]
        body = {"message_ids": [*ids, "jobs:0:9", "jobs:77:0", "jobs:0:123456", "jobs:0"]}
        response = await queues.post("/subscriptions/workers/ack", body)
        assert response["settled"] == 9
        assert {(one["message_id"], one["code"]) for one in response["refused"]} == {
            ("jobs:0:9", "lease_lost"),
            ("jobs:77:0", "topic_not_found"),
            ("jobs:0:123456", "lease_lost"),
            ("jobs:0", "invalid_message_id"),
        }
        nacked = await queues.post("/subscriptions/workers/nack", {"message_ids": ["jobs:77:0", "jobs:0:3"]})
        assert (nacked["settled"], len(nacked["refused"])) == (0, 2)

    with_queues(scenario)


def test_nack_reject_and_extend() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1", b"2", b"3")
        nacked, rejected, extended = await queues.pull("lease=5s")
        nack = {"receipt": nacked["receipt"], "delay": "2s", "reason": "busy"}
        assert await queues.post("/subscriptions/workers/nack", nack) == SETTLED
        reject = {"message_id": rejected["message_id"], "reason": "broken"}
        assert await queues.post("/subscriptions/workers/reject", reject) == SETTLED
        extend = {"receipts": [extended["receipt"]], "lease": 600}
        assert await queues.post("/subscriptions/workers/extend", extend) == SETTLED
        assert await queues.pull() == []
        await asyncio.sleep(3)
        (again,) = await queues.pull()
        assert (again["message_id"], again["attempt"]) == (nacked["message_id"], 2)
        await asyncio.sleep(30)
        assert await queues.post("/subscriptions/workers/ack", {"receipt": extended["receipt"]}) == SETTLED
        (letter,) = (await queues.get("/subscriptions/workers/dead-letters"))["dead_letters"]
        assert (letter["value"], letter["reason"]) == (2, "broken")

    with_queues(scenario)


def test_single_acks_of_many_connections_share_a_request() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(*(b"%d" % number for number in range(50)))
        messages = await queues.pull("max_messages=50")
        sent: list[SettleRequest] = []
        call = queues.cluster.call

        async def watched(request: Any, **options: Any) -> Any:
            if isinstance(request, SettleRequest):
                sent.append(request)
            return await call(request, **options)

        queues.cluster.call = watched  # type: ignore[method-assign]
        acks = [
            asyncio.create_task(queues.post("/subscriptions/workers/ack", {"message_id": one["message_id"]}))
            for one in messages
        ]
        assert [await ack for ack in acks] == [SETTLED] * 50
        assert len(sent) <= 2
        assert await backlog(queues) == 0

    with_queues(scenario)


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("ack", {}, "invalid_body"),
        ("ack", {"receipt": "a", "message_id": "b"}, "invalid_body"),
        ("ack", {"receipts": []}, "invalid_body"),
        ("ack", {"receipts": ["x"] * 1001}, "invalid_body"),
        ("ack", {"message_id": 1}, "invalid_body"),
        ("ack", {"message_id": "jobs:0:0", "delay": "5s"}, "invalid_body"),
        ("ack", {"receipt": "jobs:0:0"}, "invalid_receipt"),
        ("ack", {"message_id": "jobs:0"}, "invalid_message_id"),
        ("ack", {"message_id": "other:0:0"}, "other_topic"),
        ("nack", {"message_id": "jobs:0:0", "delay": "soon"}, "invalid_parameter"),
        ("extend", {"message_id": "jobs:0:0", "lease": "13h"}, "invalid_parameter"),
        ("reject", {"message_id": "jobs:0:0", "reason": "x" * 1001}, "invalid_body"),
    ],
)
def test_invalid_requests_are_rejected(verb: str, body: Any, code: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", f"/subscriptions/workers/{verb}", body)
        assert (response.status, response.body["code"]) == (422, code)

    with_queues(scenario)


def test_a_body_that_is_not_json_is_rejected() -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", "/subscriptions/workers/ack", b"{")
        assert (response.status, response.body["code"]) == (400, "malformed_json")
        response = await queues.ask("POST", "/subscriptions/workers/ack", b"{}", {"content-type": "text/plain"})
        assert response.status == 415

    with_queues(scenario)


def test_a_delay_above_the_limit_is_rejected() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1")
        (message,) = await queues.pull()
        body = {"receipt": message["receipt"], "delay": "400d"}
        response = await queues.ask("POST", "/subscriptions/workers/nack", body)
        assert (response.status, response.body["code"]) == (422, "invalid_request")

    with_queues(scenario)


def test_settling_for_a_missing_subscription_is_a_404() -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", "/subscriptions/nobody/ack", {"message_id": "jobs:0:0"})
        assert (response.status, response.body["code"]) == (404, "subscription_not_found")
        await queues.put(b"1")
        await queues.pull()
        await another(queues).ask("DELETE", "/topics/jobs/subscriptions/workers")
        for _ in range(2):
            response = await queues.ask("POST", "/subscriptions/workers/ack", {"message_ids": ["jobs:0:0"]})
            assert (response.status, response.body["code"]) == (404, "subscription_not_found")

    with_queues(scenario)
