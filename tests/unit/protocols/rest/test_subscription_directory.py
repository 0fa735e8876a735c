"""The topic of a subscription is found by the name of the subscription, unless it is ambiguous."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.protocols.rest.rest_queue_support import RestQueues, with_queues

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.http.problems import Problem


def requested(queues: RestQueues, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Record the names for which brokers are queried from now on."""
    names: list[str | None] = []
    describe = SubscriptionAdmin.describe

    async def watched(self: SubscriptionAdmin, name: str | None = None, topics: Any = None) -> Any:
        names.append(name)
        return await describe(self, name, topics)

    monkeypatch.setattr(SubscriptionAdmin, "describe", watched)
    return names


def test_concurrent_lookups_share_a_request_and_its_result_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(queues: RestQueues) -> None:
        names = requested(queues, monkeypatch)
        tasks = [asyncio.create_task(queues.directory.topic_of("workers")) for _ in range(10)]
        tasks[0].cancel()
        assert [await task for task in tasks[1:]] == ["jobs"] * 9
        assert await queues.directory.topic_of("workers") == "jobs"
        assert names == ["workers"]
        await asyncio.sleep(11)
        assert await queues.directory.topic_of("workers") == "jobs"
        assert names == ["workers"] * 2
        queues.directory.forget("workers")
        assert await queues.directory.topic_of("workers") == "jobs"
        assert names == ["workers"] * 3

    with_queues(scenario)


def test_a_missing_subscription_is_not_cached() -> None:
    async def scenario(queues: RestQueues) -> None:
        for hint in (None, "jobs"):
            with pytest.raises(Problem) as raised:
                await queues.directory.topic_of("later", hint)
            assert (raised.value.status, raised.value.code) == (404, "subscription_not_found")
        await queues.subscribe("later")
        assert await queues.directory.topic_of("later") == "jobs"

    with_queues(scenario)


def test_an_ambiguous_name_requires_the_topic() -> None:
    async def scenario(queues: RestQueues) -> None:
        await TopicAdmin(queues.cluster).create(NewTopic("others", 1))
        await queues.subscribe(topic="others")
        response = await queues.ask("GET", "/subscriptions/workers/messages")
        assert (response.status, response.body["code"]) == (409, "subscription_ambiguous")
        assert "jobs, others" in response.body["message"]
        await queues.put(b"1", topic="others")
        assert [one["value"] for one in await queues.pull("topic=others")] == [1]
        assert await queues.pull("topic=jobs") == []

    with_queues(scenario)
