"""DrainBroker marks the broker in the registry, unless too few other brokers are available."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.broker.registered_partitions import RegisteredPartitions, context
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.broker.handlers import RequestHandler
from headrace.model.errors import InvalidRequest, PolicyViolation, RequestTimedOut
from headrace.registry.brokers import drained_key
from headrace.wire import apis
from headrace.wire.messages.replicas import DrainBrokerRequest, DrainBrokerResponse

OK = 0


async def drain(
    registered_partitions: RegisteredPartitions,
    node_id: int,
    *,
    is_drained: bool = True,
    reduces_replicas: bool = False,
) -> DrainBrokerResponse:
    handler = RequestHandler(apis.DRAIN_BROKER, registered_partitions.requests.drain)
    response = await handler.handle(DrainBrokerRequest(node_id, is_drained, reduces_replicas), context())
    assert response is not None
    return response


async def is_drained(registered_partitions: RegisteredPartitions, node_id: int) -> bool:
    return await registered_partitions.registry.get(drained_key(node_id)) is not None


async def test_a_drain_lasts_until_it_is_cancelled() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.register(1, 2, 3)
    await registered_partitions.add("t", led_partition(3, 1))
    for _ in range(2):
        assert (await drain(registered_partitions, 3)).error_code == OK
        assert await is_drained(registered_partitions, 3)
    for _ in range(2):
        assert (await drain(registered_partitions, 3, is_drained=False)).error_code == OK
        assert not await is_drained(registered_partitions, 3)


async def test_a_broker_that_is_down_can_be_drained() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.register(1, 2, 3)
    assert (await drain(registered_partitions, 3)).error_code == OK


async def test_an_unknown_broker_cannot_be_drained() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.register(1, 2)
    response = await drain(registered_partitions, 3)
    assert (response.error_code, await is_drained(registered_partitions, 3)) == (InvalidRequest.code, False)
    assert response.error_message == "broker 3 has never been part of this cluster"


async def test_a_drain_is_rejected_if_too_few_other_brokers_are_available() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.register(1, 2, 3)
    await registered_partitions.add("small", led_partition(1, 2))
    await registered_partitions.add("large", led_partition(1, 2, 3))
    response = await drain(registered_partitions, 3)
    assert (response.error_code, await is_drained(registered_partitions, 3)) == (PolicyViolation.code, False)
    assert "start another broker first" in (response.error_message or "")
    assert "`headrace cluster drain 3 --reduce-replicas`" in (response.error_message or "")
    registered_partitions.start(4, is_draining=True)
    assert (await drain(registered_partitions, 3)).error_code == PolicyViolation.code, (
        "one that is about to go is no help"
    )
    registered_partitions.start(4)
    await registered_partitions.drain(4)
    assert (await drain(registered_partitions, 3)).error_code == PolicyViolation.code, (
        "nor is one that is to hold nothing"
    )
    registered_partitions.start(5)
    assert (await drain(registered_partitions, 3)).error_code == OK


async def test_replicas_to_be_removed_are_not_counted() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.register(1, 2, 3)
    await registered_partitions.add("t", replace(led_partition(1, 2, 3), removing=(3,)))
    assert (await drain(registered_partitions, 3)).error_code == OK


async def test_a_drain_is_accepted_if_the_client_will_reduce_the_replicas() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.register(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2, 3))
    assert (await drain(registered_partitions, 3, reduces_replicas=True)).error_code == OK
    assert await is_drained(registered_partitions, 3)


async def test_the_last_broker_cannot_be_drained_by_reducing_replicas() -> None:
    registered_partitions = RegisteredPartitions(1)
    await registered_partitions.register(1)
    await registered_partitions.add("t", led_partition(1))
    response = await drain(registered_partitions, 1, reduces_replicas=True)
    assert response.error_code == PolicyViolation.code
    assert "--reduce-replicas" not in (response.error_message or "")


async def test_colocated_replicas_are_not_counted_because_they_follow_their_owner() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.register(1, 2, 3)
    await registered_partitions.add("t", replace(led_partition(1, 2, 3), removing=(3,)))
    owner = registered_partitions.catalogue.topic("t").id
    await registered_partitions.add("__acks.t", led_partition(1, 2, 3), owner=owner)
    assert (await drain(registered_partitions, 3)).error_code == OK


async def test_an_unavailable_registry_is_a_retriable_error() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.register(1, 2)
    registered_partitions.registry.unavailable = True
    assert (await drain(registered_partitions, 2)).error_code == RequestTimedOut.code
    assert (await drain(registered_partitions, 2, is_drained=False)).error_code == RequestTimedOut.code
