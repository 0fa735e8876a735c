"""Who configures a name must manage all topics that have a subscription of that name."""

from __future__ import annotations

import pytest
from tests.unit.client.simulated import client, start_broker

from headrace.client.admin import NewTopic, TopicAdmin
from headrace.client.subscription_admin import START, Position, SubscriptionAdmin
from headrace.doors.rest.access import ANYBODY, Caller
from headrace.doors.rest.name_rights import require_name
from headrace.http.problem import Problem
from headrace.model.tokens import parse_scope
from headrace.testkit.world import World


def caller(*scopes: str) -> Caller:
    return Caller("test", "t1", [parse_scope(scope) for scope in scopes])


def test_a_name_is_not_taken_from_the_topic_next_door() -> None:
    async def scenario() -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = SubscriptionAdmin(cluster)
            for topic in ("mine", "theirs"):
                await TopicAdmin(cluster).create(NewTopic(topic, 2))
            await require_name(caller("manage:mine"), admin, "billing")
            await admin.create("mine", "billing", Position(START))
            await require_name(caller("manage:mine"), admin, "billing")
            await admin.create("theirs", "billing", Position(START))
            for scopes in (["manage:mine"], ["manage:theirs"], ["publish:*", "consume:*", "read:*"]):
                with pytest.raises(Problem) as told:
                    await require_name(caller(*scopes), admin, "billing")
                assert told.value.status == 403
            await require_name(caller("manage:mine", "manage:the*"), admin, "billing")
            await require_name(ANYBODY, admin, "billing")
            await require_name(caller("manage:mine"), admin, "other")

    world = World(seed=1)
    world.run(scenario())
    world.close()
