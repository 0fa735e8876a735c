"""A broker as a member of a cluster: start, loss of data, sessions, and controlled shutdown."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.broker_requests import batch, produce, read_all, send
from tests.unit.broker.simulated_cluster import PORT, SESSION_SECONDS, SimulatedCluster, in_simulated_cluster

from headrace.broker.cluster.cluster_member import ClusterMember
from headrace.broker.cluster.membership import NodeIdTaken, WrongDataFolder
from headrace.broker.controller.controller import Controller
from headrace.broker.partition import Partition
from headrace.client.connections.tcp import TcpDialer
from headrace.client.errors import Unreachable
from headrace.model.errors import NotLeader
from headrace.model.registry_records import PartitionRecord
from headrace.registry.brokers import live_key
from headrace.registry.interface import RegistryUnavailable
from headrace.registry.topics import TopicRecords
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.wire.apis import CREATE_TOPICS, METADATA
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from headrace.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

# What may have been lost


@in_simulated_cluster()
async def test_after_a_power_cut_of_all_brokers_the_cluster_recovers_without_loss(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", min_insync_replicas="2")
    for number in range(3):
        await produce(simulated_cluster[1], "t", b"%d" % number)
    for simulated_broker in list(simulated_cluster.up):
        simulated_broker.kill(keep_page_cache=False)
    await simulated_cluster.open()
    leader = await simulated_cluster.wait_for_leader("t")
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert await read_all(leader, "t") == [b"0", b"1", b"2"]
    assert simulated_cluster.record("t").unclean_epoch == -1


@in_simulated_cluster(2)
async def test_a_broker_with_an_empty_folder_is_not_trusted(simulated_cluster: SimulatedCluster) -> None:
    """KIP-966: with an empty log it would be elected, and the others cut theirs."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    for simulated_broker in list(simulated_cluster.up):
        simulated_broker.kill()
    await simulated_cluster.replace_disk(2)
    await simulated_cluster.open(2)
    record = simulated_cluster.record("t")
    assert (record.leader, record.isr) == (-1, (1,))
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert await read_all(simulated_cluster.leader("t"), "t") == [b"a"]


@pytest.mark.parametrize("stop", ["clean", "kill"])
@in_simulated_cluster(2)
async def test_a_broker_that_lost_a_log_leaves_the_in_sync_set(simulated_cluster: SimulatedCluster, stop: str) -> None:
    """Decision 012: its flushed offset is kept elsewhere, so the empty log that takes its place is quarantined."""
    for topic in ("t", "kept"):
        await simulated_cluster.create_topic(topic)
        await produce(simulated_cluster[1], topic, b"a")
        await simulated_cluster.wait_until_identical(topic)
    folder = simulated_cluster.replica(2, "t").log.folder
    for simulated_broker in list(simulated_cluster.up):
        if stop == "kill":
            simulated_broker.kill()
        else:
            await simulated_broker.close()
    simulated_cluster[2].host.disk.remove_tree(folder)
    await simulated_cluster.open(2)
    assert 2 not in simulated_cluster.record("t").isr + simulated_cluster.record("t").elr
    assert 2 in simulated_cluster.record("kept").isr
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert await read_all(await simulated_cluster.wait_for_leader("t"), "t") == [b"a"]


@in_simulated_cluster(2)
async def test_a_broker_that_lost_a_log_and_crashed_before_reporting_it_leaves_the_in_sync_set(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    for simulated_broker in list(simulated_cluster.up):
        simulated_broker.kill()
    await simulated_cluster.replace_disk(2)

    async def crash(_self: ClusterMember) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(ClusterMember, "_leave_isr_after_loss", crash)
        simulated_cluster[2].host.start(simulated_cluster[2].open(), "a start that is cut off")
        await asyncio.sleep(5)
        simulated_cluster[2].kill()
    await simulated_cluster.open(2)
    assert simulated_cluster.record("t").isr == (1,)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert await read_all(simulated_cluster.leader("t"), "t") == [b"a"]


@in_simulated_cluster(2)
async def test_a_broker_with_an_old_copy_of_its_folder_leaves_the_in_sync_sets(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster[2].close()
    disk = simulated_cluster[2].host.disk
    files = {path: disk.read(path) for path in _files(simulated_cluster, "/data")}
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await produce(simulated_cluster.leader("t"), "t", b"b")
    await simulated_cluster.wait_until_identical("t")
    for simulated_broker in list(simulated_cluster.up):
        simulated_broker.kill()
    await simulated_cluster.replace_disk(2)
    disk = simulated_cluster[2].host.disk
    for path, content in files.items():
        _make_parents(simulated_cluster, path)
        disk.write_atomically(path, content)
    await simulated_cluster.open(2)
    assert simulated_cluster.record("t").isr == (1,)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.end_offset == 2


def _files(simulated_cluster: SimulatedCluster, folder: str) -> list[str]:
    disk, found = simulated_cluster[2].host.disk, []
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        try:
            found += _files(simulated_cluster, path)
        except Exception:
            found.append(path)
    return found


def _make_parents(simulated_cluster: SimulatedCluster, path: str) -> None:
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        simulated_cluster[2].host.disk.make_directory("/" + "/".join(parts[:depth]))


@in_simulated_cluster(2, offsets_topic_replication_factor="2")
async def test_the_folder_of_another_cluster_is_rejected(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster[2].close()
    simulated_cluster[2].registry_ensemble = SimRegistryEnsemble()
    with pytest.raises(WrongDataFolder, match="check --registry and --data"):
        await simulated_cluster.open(2)


@pytest.mark.parametrize("is_clean", [True, False])
@in_simulated_cluster(2)
async def test_where_the_disk_is_not_waited_for_an_unclean_stop_is_not_trusted(
    simulated_cluster: SimulatedCluster, is_clean: bool
) -> None:
    await simulated_cluster.create_topic("t", flush_messages="1000")
    await simulated_cluster.create_topic("safe")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    for node_id in (1, 2):
        if is_clean:
            await simulated_cluster[node_id].close()
        else:
            simulated_cluster[node_id].kill()
    await simulated_cluster.open(2)
    assert (2 in simulated_cluster.record("t").isr) is is_clean
    assert 2 in simulated_cluster.record("safe").isr, "there, all that was acknowledged is on the disk"


LACKS = "log may lack acknowledged records; replicating it again partition=t-0"


async def acknowledge_from_memory(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), flush_messages="1000")
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until(
        lambda: all(simulated_cluster.replica(node_id, "t").config.flush_messages > 1 for node_id in (1, 2))
    )
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    assert [simulated_cluster.replica(node_id, "t").log.flushed_offset for node_id in (1, 2)] == [0, 0]


async def set_flush_messages(simulated_cluster: SimulatedCluster, value: str) -> None:
    topic = simulated_cluster[1].broker.catalogue.topic("t")
    await TopicRecords(SimRegistry(simulated_cluster.registry_ensemble)).change_configs(
        "t", topic.id, lambda _: {"flush.messages": value}
    )


@in_simulated_cluster(2)
async def test_a_lost_unflushed_write_is_reported_even_after_flush_messages_is_lowered(
    simulated_cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await acknowledge_from_memory(simulated_cluster)
    for broker in list(simulated_cluster.up):
        broker.kill(keep_page_cache=False)
    await set_flush_messages(simulated_cluster, "1")
    await simulated_cluster.open(1)
    assert LACKS in caplog.text
    assert 1 not in simulated_cluster.record("t").isr


@in_simulated_cluster(2)
async def test_unflushed_writes_are_flushed_when_flush_messages_is_lowered(
    simulated_cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await acknowledge_from_memory(simulated_cluster)
    await set_flush_messages(simulated_cluster, "1")
    kept = simulated_cluster[1].broker.store.topic_files.records[simulated_cluster[1].broker.catalogue.topic("t").id]
    assert kept.configs["flush.messages"] == "1000"
    await simulated_cluster.wait_until(
        lambda: all(simulated_cluster.replica(node_id, "t").log.flushed_offset == 1 for node_id in (1, 2))
    )
    files = simulated_cluster[1].broker.store.topic_files
    await simulated_cluster.wait_until(lambda: files.records[kept.id].configs["flush.messages"] == "1")
    for broker in list(simulated_cluster.up):
        broker.kill(keep_page_cache=False)
    await simulated_cluster.open(1)
    assert LACKS not in caplog.text
    assert 1 in simulated_cluster.record("t").isr


@in_simulated_cluster(2)
async def test_flush_messages_is_raised_only_after_the_topic_file_is_written(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Otherwise a broker that loses what it acknowledged from memory would not know that it did."""
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until_in_sync("t")
    broker = simulated_cluster[1].broker
    topic = broker.catalogue.topic("t")
    await simulated_cluster.wait_until(lambda: topic.id in broker.store.topic_files.records)
    simulated_cluster[1].host.disk.fail_next("sync", "*/topics/*")
    await set_flush_messages(simulated_cluster, "1000")
    await simulated_cluster.wait_until(lambda: topic.config.flush_messages == 1000)
    replica = simulated_cluster.replica(1, "t")
    assert (replica.config.flush_messages, replica.log.config.flush_messages) == (1, 1)
    await simulated_cluster.wait_until(lambda: replica.config.flush_messages == 1000)
    assert broker.store.topic_files.records[topic.id].configs == {"flush.messages": "1000"}
    assert replica.log.config.flush_messages == 1000


# Its session


@in_simulated_cluster()
async def test_a_session_replaced_before_an_election_changes_nothing(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (3, 1, 2))
    await produce(simulated_cluster[3], "t", b"a")
    # The other brokers get no event: the broker is back before they have read the registry.
    membership = simulated_cluster[3].broker.cluster.membership
    first = membership.session
    clients, simulated_cluster.registry_ensemble.clients = (
        simulated_cluster.registry_ensemble.clients,
        [simulated_cluster[3].registry],
    )
    simulated_cluster.registry_ensemble.expire(first)
    await simulated_cluster.wait_until(lambda: live_key(3) in simulated_cluster.registry_ensemble.entries)
    simulated_cluster.registry_ensemble.clients = clients
    assert membership.session != first
    assert membership.session_valid
    assert (simulated_cluster.record("t").leader, simulated_cluster.record("t").leader_epoch) == (3, 0)
    assert await produce(simulated_cluster[3], "t", b"b") == 1
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_a_session_replaced_after_an_election_has_lost_its_leaderships(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (3, 1, 2))
    await produce(simulated_cluster[3], "t", b"a")
    simulated_cluster.expire(3)
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader_epoch > 0)
    leader = await simulated_cluster.wait_for_leader("t")
    assert await produce(leader, "t", b"b") == 1
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster[3].broker.catalogue.nodes[3].epoch == 1, "it is the same start"


@in_simulated_cluster(sessions_time_out=True, replica_lag_time_max_ms="1000")
async def test_a_leader_that_learns_of_its_successor_late_has_acknowledged_nothing_alone(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (3, 1, 2))
    await produce(simulated_cluster[3], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster[3].registry.disconnect(silently=True)
    simulated_cluster.isolate(3)
    sending = asyncio.ensure_future(send(simulated_cluster[3], "t", batch(b"lost")))
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader != 3)
    leader = await simulated_cluster.wait_for_leader("t")
    assert await produce(leader, "t", b"kept") == 1
    assert simulated_cluster.leads(3, "t"), "it does not know yet"
    assert (await send(simulated_cluster[3], "t", batch(b"once"), acks=1)).error_code == NotLeader.code, (
        "it is in doubt"
    )
    simulated_cluster.heal()
    simulated_cluster[3].registry.reconnect()
    assert (await sending).error_code == NotLeader.code
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert await read_all(leader, "t") == [b"a", b"kept"]


@in_simulated_cluster(sessions_time_out=True)
async def test_a_restarted_broker_does_not_wait_for_its_old_session_to_expire(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (3,))
    simulated_cluster[3].kill()
    began = simulated_cluster.world.clock.monotonic()
    await simulated_cluster.open(3)
    assert simulated_cluster.world.clock.monotonic() - began < SESSION_SECONDS / 2
    assert simulated_cluster.leads(3, "t")
    assert simulated_cluster.record("t").leader_epoch == 1


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_broker_with_the_node_id_of_another_does_not_start(simulated_cluster: SimulatedCluster) -> None:
    simulated_cluster[1].kill()
    await simulated_cluster.replace_disk(1)
    simulated_cluster[1].node_id = 2
    with pytest.raises(NodeIdTaken, match="a broker with node id 2 is running"):
        await simulated_cluster[1].open()
    simulated_cluster[1].kill()


@in_simulated_cluster(1)
async def test_a_restarted_broker_does_not_resume_its_old_leader_term(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is elected again, it leads nothing: records of that epoch may be lost (I11)."""
    await simulated_cluster.create_topic("t", (1,))
    simulated_cluster[1].kill()
    leads: list[int] = []
    lead = Partition.lead

    def note(self: Partition, node_id: int, record: PartitionRecord, now: float) -> None:
        leads.append(record.leader_epoch)
        lead(self, node_id, record, now)

    monkeypatch.setattr(Partition, "lead", note)
    await simulated_cluster.open(1)
    assert leads == [1]


# Coming and going


@in_simulated_cluster(opens=False)
async def test_a_broker_leads_its_partitions_when_join_returns(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.open(1)
    await simulated_cluster.create_topic("t", *[(1,)] * 20)
    await simulated_cluster[1].close()
    await simulated_cluster.open(1)
    assert all(simulated_cluster.leads(1, "t", index) for index in range(20))


@in_simulated_cluster(2, opens=False, sessions_time_out=True)
async def test_a_client_that_connects_during_a_start_gets_a_response_once_the_broker_knows_itself(
    simulated_cluster: SimulatedCluster,
) -> None:
    """First start, a broker that joins, and one that starts again after a crash, whose old entry is still there."""
    simulated_cluster.registry_ensemble.delay_seconds = (0.01, 0.02)
    for node_id in (1, 2, 1):
        if simulated_cluster[node_id].is_open:
            simulated_cluster[node_id].kill()
        waiting = asyncio.ensure_future(_first_responses(simulated_cluster, node_id))
        await simulated_cluster.open(node_id)
        metadata, created = await waiting
        assert (node_id, PORT) in [(broker.node_id, broker.port) for broker in metadata.brokers]
        assert metadata.controller_id in [broker.node_id for broker in metadata.brokers]
        assert [topic.error_code for topic in created.topics] == [0]


async def _first_responses(
    simulated_cluster: SimulatedCluster, node_id: int
) -> tuple[MetadataResponse, CreateTopicsResponse]:
    """Connect again and again until the broker's port takes the connection, then ask at once."""
    dialer = TcpDialer(simulated_cluster.world.host("client").network, "client")
    while True:
        try:
            transport = await dialer.dial(simulated_cluster[node_id].host.name, PORT, 60.0)
            break
        except Unreachable:
            await asyncio.sleep(0.0001)
    metadata = transport.call(METADATA, 9, MetadataRequest(topics=None), 60.0)
    topic = CreatableTopic(
        name=f"t{simulated_cluster[node_id].host.entropy.token(6)}", num_partitions=1, replication_factor=1
    )
    created = transport.call(CREATE_TOPICS, 6, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 60.0)
    responses: tuple[MetadataResponse, CreateTopicsResponse] = await asyncio.gather(metadata, created)
    transport.close()
    return responses


@in_simulated_cluster(1, opens=False)
async def test_a_broker_that_finds_no_controller_stops_instead_of_serving(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller, "_may_stand_for_election", lambda _self: False)
    with pytest.raises(RegistryUnavailable, match="broker 1 found no controller within 60 s"):
        await simulated_cluster.open(1)
    simulated_cluster[1].kill()


@in_simulated_cluster()
async def test_a_topic_created_at_one_broker_accepts_writes_at_all_leaders(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2), by=2)
    for index in range(3):
        assert await produce(simulated_cluster[index + 1], "t", b"a", partition=index) == 0


@in_simulated_cluster()
async def test_leaderships_are_transferred_before_a_broker_stops(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (1, 3))
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.cluster.transfer_leadership(), "hand over")
    assert (simulated_cluster.leads(1, "t", 0), simulated_cluster.leads(1, "t", 1)) == (False, False)
    assert [simulated_cluster.record("t", index).leader for index in (0, 1)] == [2, 3]
    assert 1 in simulated_cluster.record("t").isr, "it still has everything"
    await simulated_cluster.wait_for_leader("t", 2)
    assert await produce(simulated_cluster[2], "t", b"a") == 0


@in_simulated_cluster()
async def test_a_stopping_broker_keeps_partitions_that_no_other_can_lead(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1,))
    began = simulated_cluster.world.clock.monotonic()
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.cluster.transfer_leadership(), "hand over")
    assert simulated_cluster.world.clock.monotonic() - began < 1, "there is nothing to wait for"
    assert await produce(simulated_cluster[1], "t", b"a") == 0


@in_simulated_cluster()
async def test_when_all_brokers_stop_none_waits_for_a_transfer(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for index in range(3):
        await simulated_cluster.wait_until_in_sync("t", index=index)
    began = simulated_cluster.world.clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for simulated_broker in simulated_cluster.up:
            group.create_task(_hand_over(simulated_cluster, simulated_broker.node_id))
    assert simulated_cluster.world.clock.monotonic() - began < 2


async def _hand_over(simulated_cluster: SimulatedCluster, node_id: int) -> None:
    await simulated_cluster[node_id].host.start(
        simulated_cluster[node_id].broker.cluster.transfer_leadership(), "hand over"
    )


@in_simulated_cluster(1)
async def test_a_single_broker_stops_without_a_transfer(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1,))
    began = simulated_cluster.world.clock.monotonic()
    await _hand_over(simulated_cluster, 1)
    assert simulated_cluster.world.clock.monotonic() == pytest.approx(began, abs=0.01)
    assert await produce(simulated_cluster[1], "t", b"a") == 0


@in_simulated_cluster()
async def test_a_stopping_broker_ends_its_session(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster[3].close()
    assert live_key(3) not in simulated_cluster.registry_ensemble.entries
    await simulated_cluster.wait_until(lambda: list(simulated_cluster[1].broker.catalogue.nodes) == [1, 2])
