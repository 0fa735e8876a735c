"""ApiVersions, InitProducerId and DescribeLogDirs; and the table of requests."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker, decode_as_client

from headrace.broker.handlers import UNKNOWN_VERSION, RequestContext
from headrace.model.errors import CoordinatorNotAvailable, MalformedFrame, UnsupportedVersion
from headrace.registry.brokers import drain
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, LEASE, PRODUCE
from headrace.wire.messages.metadata import ApiVersionsRequest
from headrace.wire.messages.replicas import DescribableLogDirTopic, DescribeLogDirsRequest
from headrace.wire.messages.transactions import InitProducerIdRequest


@pytest.mark.parametrize("version", range(5))
async def test_every_served_api_is_advertised(simulated_broker: SimulatedBroker, version: int) -> None:
    response = await simulated_broker.send(ApiVersionsRequest(), version)
    assert response.error_code == 0
    advertised = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert list(advertised) == sorted(advertised)
    assert advertised.keys() == {handler.api.key for handler in simulated_broker.broker.handlers} == APIS.keys()
    assert advertised[PRODUCE] == (0, 13), "old librdkafka stops compressing otherwise"
    assert advertised[FETCH] == (4, 18)
    assert advertised[API_VERSIONS] == (0, 4)


async def test_an_unknown_api_versions_version_gets_a_version_0_response_with_the_known_ones(
    simulated_broker: SimulatedBroker,
) -> None:
    handler, version = simulated_broker.broker.handlers.find(API_VERSIONS, 77)
    assert version == UNKNOWN_VERSION
    context: RequestContext = FakeConnection().context(version)
    response = decode_as_client(await handler.handle(None, context), 0)
    assert response.error_code == UnsupportedVersion.code
    assert API_VERSIONS in {key.api_key for key in response.api_keys}


@pytest.mark.parametrize(("key", "version"), [(PRODUCE, 2), (PRODUCE, 14), (FETCH, 3), (FETCH, -1), (999, 0), (-1, 0)])
async def test_other_requests_in_an_unknown_version_are_rejected(
    simulated_broker: SimulatedBroker, key: int, version: int
) -> None:
    with pytest.raises(MalformedFrame):
        simulated_broker.broker.handlers.find(key, version)


async def test_only_fetches_and_leases_may_be_cancelled(simulated_broker: SimulatedBroker) -> None:
    assert [handler.api.key for handler in simulated_broker.broker.handlers if handler.is_read_only] == [FETCH, LEASE]


async def test_every_producer_gets_an_unused_producer_id(simulated_broker: SimulatedBroker) -> None:
    seen = []
    for start in range(3):
        for version in range(6):
            response = await simulated_broker.send(InitProducerIdRequest(), version)
            assert (response.error_code, response.producer_epoch) == (0, 0)
            seen.append(response.producer_id)
        if start == 0:
            await simulated_broker.restart()
        else:
            simulated_broker.kill(keep_page_cache=False)
            await simulated_broker.open()
    assert len(set(seen)) == len(seen)
    assert min(seen) >= 0


async def test_an_unavailable_registry_gives_a_retriable_error_for_producer_ids(
    simulated_broker: SimulatedBroker,
) -> None:
    simulated_broker.registry.unavailable = True
    assert (await simulated_broker.send(InitProducerIdRequest(), 4)).error_code == CoordinatorNotAvailable.code
    simulated_broker.registry.unavailable = False
    assert (await simulated_broker.send(InitProducerIdRequest(), 4)).error_code == 0


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs_lists_the_data_folder_and_its_logs(
    simulated_broker: SimulatedBroker, version: int
) -> None:
    await simulated_broker.create_topic("a", 2)
    await simulated_broker.create_topic("b")
    await produce(simulated_broker, "a", b"x" * 100, partition=1)
    size = simulated_broker.partition("a", 1).log.size_bytes
    (result,) = (await simulated_broker.send(DescribeLogDirsRequest(topics=None), version)).results
    assert (result.error_code, result.log_dir) == (0, "/data")
    held = {topic.name: [part.partition_size for part in topic.partitions] for topic in result.topics}
    assert held == {"a": [0, size], "b": [0]}
    if version >= 4:
        assert 0 < result.usable_bytes < result.total_bytes == simulated_broker.host.disk.capacity_bytes
    requested = [
        DescribableLogDirTopic(topic="a", partitions=[1]),
        DescribableLogDirTopic(topic="missing", partitions=[0]),
    ]
    (result,) = (await simulated_broker.send(DescribeLogDirsRequest(topics=requested), version)).results
    assert [(topic.name, len(topic.partitions)) for topic in result.topics] == [("a", 1)]


async def test_the_folder_of_a_broker_that_is_drained_is_cordoned(simulated_broker: SimulatedBroker) -> None:
    for is_drained in (True, False):
        await simulated_broker.host.start(drain(simulated_broker.registry, 1, is_drained=is_drained), "drain")
        await simulated_broker.pass_time(1)
        (result,) = (await simulated_broker.send(DescribeLogDirsRequest(topics=None), 5)).results
        assert result.is_cordoned is is_drained
