"""A broker as one of a cluster: how it comes, what it admits to have lost, and how it goes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.asking import batch, produce, read_all, send
from tests.unit.broker.town import SESSION_SECONDS, Town, in_town
from tests.unit.broker.trio import PORT

from headrace.broker.cluster import ClusterMember
from headrace.broker.controller import Controller
from headrace.broker.membership import NodeIdTaken, WrongFolder
from headrace.broker.partition import Partition
from headrace.client.errors import Unreachable
from headrace.client.tcp import TcpDialer
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import live_key
from headrace.registry.interface import RegistryUnavailable
from headrace.registry.topics import Topics
from headrace.testkit.registry import SimRegistry, SimRegistryState
from headrace.wire.apis import CREATE_TOPICS, METADATA
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse

NOT_LEADER = 6


# What may have been lost


@in_town()
async def test_a_power_cut_of_all_heals_by_itself_and_loses_nothing(town: Town) -> None:
    await town.make_topic("t", min_insync_replicas="2")
    for number in range(3):
        await produce(town[1], "t", b"%d" % number)
    for house in list(town.up):
        house.kill(keep_page_cache=False)
    await town.open()
    leader = await town.until_led("t")
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert await read_all(leader, "t") == [b"0", b"1", b"2"]
    assert town.record("t").unclean_epoch == -1


@in_town(2)
async def test_a_broker_with_an_empty_folder_is_not_trusted(town: Town) -> None:
    """KIP-966: with an empty log it would be elected, and the others cut theirs."""
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    for house in list(town.up):
        house.kill()
    await town.replace_disk(2)
    await town.open(2)
    record = town.record("t")
    assert (record.leader, record.isr) == (-1, (1,))
    await town.open(1)
    await town.until_in_sync("t")
    assert await read_all(town.leader("t"), "t") == [b"a"]


@pytest.mark.parametrize("stop", ["clean", "kill"])
@in_town(2)
async def test_a_broker_that_lost_the_log_of_one_partition_is_not_trusted_with_it(town: Town, stop: str) -> None:
    """Decision 012: its flushed offset is kept elsewhere, so the empty log that takes its place is quarantined."""
    for topic in ("t", "kept"):
        await town.make_topic(topic)
        await produce(town[1], topic, b"a")
        await town.until_alike(topic)
    folder = town.replica(2, "t").log.folder
    for house in list(town.up):
        if stop == "kill":
            house.kill()
        else:
            await house.close()
    town[2].host.disk.remove_tree(folder)
    await town.open(2)
    assert 2 not in town.record("t").isr + town.record("t").elr
    assert 2 in town.record("kept").isr
    await town.open(1)
    await town.until_in_sync("t")
    assert await read_all(await town.until_led("t"), "t") == [b"a"]


@in_town(2)
async def test_nor_is_it_when_it_crashed_before_it_could_say_so(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    for house in list(town.up):
        house.kill()
    await town.replace_disk(2)

    async def crash(_self: ClusterMember) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(ClusterMember, "_admit_losses", crash)
        town[2].host.start(town[2].open(), "a start that is cut off")
        await asyncio.sleep(5)
        town[2].kill()
    await town.open(2)
    assert town.record("t").isr == (1,)
    await town.open(1)
    await town.until_in_sync("t")
    assert await read_all(town.leader("t"), "t") == [b"a"]


@in_town(2)
async def test_a_broker_with_an_old_copy_of_its_folder_is_not_trusted(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    await town[2].close()
    disk = town[2].host.disk
    files = {path: disk.read(path) for path in _files(town, "/data")}
    await town.open(2)
    await town.until_in_sync("t")
    await produce(town.leader("t"), "t", b"b")
    await town.until_alike("t")
    for house in list(town.up):
        house.kill()
    await town.replace_disk(2)
    disk = town[2].host.disk
    for path, content in files.items():
        _make_parents(town, path)
        disk.write_atomically(path, content)
    await town.open(2)
    assert town.record("t").isr == (1,)
    await town.open(1)
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town.replica(2, "t").log.end_offset == 2


def _files(town: Town, folder: str) -> list[str]:
    disk, found = town[2].host.disk, []
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        try:
            found += _files(town, path)
        except Exception:
            found.append(path)
    return found


def _make_parents(town: Town, path: str) -> None:
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        town[2].host.disk.make_directory("/" + "/".join(parts[:depth]))


@in_town(2, offsets_topic_replication_factor="2")
async def test_the_folder_of_another_cluster_is_refused(town: Town) -> None:
    await town[2].close()
    town[2]._truth = SimRegistryState()
    with pytest.raises(WrongFolder, match="check --registry and --data"):
        await town.open(2)


@pytest.mark.parametrize("is_clean", [True, False])
@in_town(2)
async def test_where_the_disk_is_not_waited_for_an_unclean_stop_is_not_trusted(town: Town, is_clean: bool) -> None:
    await town.make_topic("t", flush_messages="1000")
    await town.make_topic("safe")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    for node_id in (1, 2):
        if is_clean:
            await town[node_id].close()
        else:
            town[node_id].kill()
    await town.open(2)
    assert (2 in town.record("t").isr) is is_clean
    assert 2 in town.record("safe").isr, "there, all that was acknowledged is on the disk"


LACKS = "log may lack acknowledged records; replicating it again partition=t-0"


async def acknowledge_from_memory(town: Town) -> None:
    await town.make_topic("t", (1, 2), flush_messages="1000")
    await town.until_in_sync("t")
    await town.until(lambda: all(town.replica(node_id, "t").config.flush_messages > 1 for node_id in (1, 2)))
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    assert [town.replica(node_id, "t").log.flushed_offset for node_id in (1, 2)] == [0, 0]


async def set_flush_messages(town: Town, value: str) -> None:
    topic = town[1].broker.catalogue.topic("t")
    await Topics(SimRegistry(town.truth)).change_configs("t", topic.id, lambda _: {"flush.messages": value})


@in_town(2)
async def test_a_loss_of_what_was_acknowledged_from_memory_is_admitted_also_after_flush_messages_is_lowered(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await acknowledge_from_memory(town)
    for broker in list(town.up):
        broker.kill(keep_page_cache=False)
    await set_flush_messages(town, "1")
    await town.open(1)
    assert LACKS in caplog.text
    assert 1 not in town.record("t").isr


@in_town(2)
async def test_what_was_acknowledged_from_memory_is_flushed_when_flush_messages_is_lowered(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await acknowledge_from_memory(town)
    await set_flush_messages(town, "1")
    kept = town[1].broker.store.topic_files.records[town[1].broker.catalogue.topic("t").id]
    assert kept.configs["flush.messages"] == "1000"
    await town.until(lambda: all(town.replica(node_id, "t").log.flushed_offset == 1 for node_id in (1, 2)))
    files = town[1].broker.store.topic_files
    await town.until(lambda: files.records[kept.id].configs["flush.messages"] == "1")
    for broker in list(town.up):
        broker.kill(keep_page_cache=False)
    await town.open(1)
    assert LACKS not in caplog.text
    assert 1 in town.record("t").isr


@in_town(2)
async def test_flush_messages_is_raised_when_the_topic_file_says_so(town: Town) -> None:
    """Otherwise a broker that loses what it acknowledged from memory would not know that it did."""
    await town.make_topic("t", (1, 2))
    await town.until_in_sync("t")
    broker = town[1].broker
    topic = broker.catalogue.topic("t")
    await town.until(lambda: topic.id in broker.store.topic_files.records)
    town[1].host.disk.fail_next("sync", "*/topics/*")
    await set_flush_messages(town, "1000")
    await town.until(lambda: topic.config.flush_messages == 1000)
    replica = town.replica(1, "t")
    assert (replica.config.flush_messages, replica.log.config.flush_messages) == (1, 1)
    await town.until(lambda: replica.config.flush_messages == 1000)
    assert broker.store.topic_files.records[topic.id].configs == {"flush.messages": "1000"}
    assert replica.log.config.flush_messages == 1000


# Its session


@in_town()
async def test_a_session_that_is_replaced_before_anybody_acts_changes_nothing(town: Town) -> None:
    await town.make_topic("t", (3, 1, 2))
    await produce(town[3], "t", b"a")
    # Nobody is told that it went: it is back before the others have looked.
    membership = town[3].broker.cluster.membership
    first = membership.session
    clients, town.truth.clients = town.truth.clients, [town[3].registry]
    town.truth.expire(first)
    await town.until(lambda: live_key(3) in town.truth.entries)
    town.truth.clients = clients
    assert membership.session != first
    assert membership.session_valid
    assert (town.record("t").leader, town.record("t").leader_epoch) == (3, 0)
    assert await produce(town[3], "t", b"b") == 1
    await town.until_alike("t")


@in_town()
async def test_a_session_that_is_replaced_after_an_election_finds_its_leads_elsewhere(town: Town) -> None:
    await town.make_topic("t", (3, 1, 2))
    await produce(town[3], "t", b"a")
    town.expire(3)
    await town.until(lambda: town.record("t").leader_epoch > 0)
    leader = await town.until_led("t")
    assert await produce(leader, "t", b"b") == 1
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town[3].broker.catalogue.nodes[3].epoch == 1, "it is the same start"


@in_town(sessions_time_out=True, replica_lag_time_max_ms="1000")
async def test_a_leader_that_hears_of_its_successor_late_has_acknowledged_nothing_alone(town: Town) -> None:
    await town.make_topic("t", (3, 1, 2))
    await produce(town[3], "t", b"a")
    await town.until_alike("t")
    town[3].registry.disconnect(silently=True)
    town.isolate(3)
    sending = asyncio.ensure_future(send(town[3], "t", batch(b"lost")))
    await town.until(lambda: town.record("t").leader != 3)
    leader = await town.until_led("t")
    assert await produce(leader, "t", b"kept") == 1
    assert town.leads(3, "t"), "it does not know yet"
    assert (await send(town[3], "t", batch(b"once"), acks=1)).error_code == NOT_LEADER, "it is in doubt"
    town.heal()
    town[3].registry.reconnect()
    assert (await sending).error_code == NOT_LEADER
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert await read_all(leader, "t") == [b"a", b"kept"]


@in_town(sessions_time_out=True)
async def test_a_broker_that_is_started_again_does_not_wait_until_its_old_session_is_over(town: Town) -> None:
    await town.make_topic("t", (3,))
    town[3].kill()
    began = town.world.clock.monotonic()
    await town.open(3)
    assert town.world.clock.monotonic() - began < SESSION_SECONDS / 2
    assert town.leads(3, "t")
    assert town.record("t").leader_epoch == 1


@in_town(2, sessions_time_out=True)
async def test_a_broker_with_the_node_id_of_another_does_not_start(town: Town) -> None:
    town[1].kill()
    await town.replace_disk(1)
    town[1].node_id = 2
    with pytest.raises(NodeIdTaken, match="a broker with node id 2 is running"):
        await town[1].open()
    town[1].kill()


@in_town(1)
async def test_a_broker_that_was_started_again_is_not_the_leader_that_it_was(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is elected anew, it has no lead: what it led in that epoch may not all be there any more (I11)."""
    await town.make_topic("t", (1,))
    town[1].kill()
    leads: list[int] = []
    lead = Partition.lead

    def note(self: Partition, node_id: int, record: PartitionRecord, now: float) -> None:
        leads.append(record.leader_epoch)
        lead(self, node_id, record, now)

    monkeypatch.setattr(Partition, "lead", note)
    await town.open(1)
    assert leads == [1]


# Coming and going


@in_town(opens=False)
async def test_it_leads_what_it_is_to_lead_when_it_has_joined(town: Town) -> None:
    await town.open(1)
    await town.make_topic("t", *[(1,)] * 20)
    await town[1].close()
    await town.open(1)
    assert all(town.leads(1, "t", index) for index in range(20))


@in_town(2, opens=False, sessions_time_out=True)
async def test_a_client_that_connects_during_a_start_is_answered_when_the_broker_is_in_its_own_metadata(
    town: Town,
) -> None:
    """First start, a broker that joins, and one that starts again after a crash, whose old entry is still there."""
    town.truth.delay_seconds = (0.01, 0.02)
    for node_id in (1, 2, 1):
        if town[node_id].is_open:
            town[node_id].kill()
        waiting = asyncio.ensure_future(_first_responses(town, node_id))
        await town.open(node_id)
        metadata, created = await waiting
        assert (node_id, PORT) in [(broker.node_id, broker.port) for broker in metadata.brokers]
        assert metadata.controller_id in [broker.node_id for broker in metadata.brokers]
        assert [topic.error_code for topic in created.topics] == [0]


async def _first_responses(town: Town, node_id: int) -> tuple[MetadataResponse, CreateTopicsResponse]:
    """Connect again and again until the broker's port takes the connection, then ask at once."""
    dialer = TcpDialer(town.world.host("client").network, "client")
    while True:
        try:
            transport = await dialer.dial(town[node_id].host.name, PORT, 60.0)
            break
        except Unreachable:
            await asyncio.sleep(0.0001)
    metadata = transport.call(METADATA, 9, MetadataRequest(topics=None), 60.0)
    topic = CreatableTopic(name=f"t{town[node_id].host.entropy.token(6)}", num_partitions=1, replication_factor=1)
    created = transport.call(CREATE_TOPICS, 6, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 60.0)
    responses: tuple[MetadataResponse, CreateTopicsResponse] = await asyncio.gather(metadata, created)
    transport.close()
    return responses


@in_town(1, opens=False)
async def test_a_broker_that_finds_no_controller_ends_instead_of_serving(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller, "_may_stand", lambda _self: False)
    with pytest.raises(RegistryUnavailable, match="broker 1 found no controller within 60 s"):
        await town.open(1)
    town[1].kill()


@in_town()
async def test_a_topic_takes_writes_everywhere_when_it_is_made_anywhere(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2), by=2)
    for index in range(3):
        assert await produce(town[index + 1], "t", b"a", partition=index) == 0


@in_town()
async def test_its_leads_are_taken_over_before_it_goes(town: Town) -> None:
    await town.make_topic("t", (1, 2), (1, 3))
    await town.until_in_sync("t")
    await town[1].host.start(town[1].broker.cluster.hand_over(), "hand over")
    assert (town.leads(1, "t", 0), town.leads(1, "t", 1)) == (False, False)
    assert [town.record("t", index).leader for index in (0, 1)] == [2, 3]
    assert 1 in town.record("t").isr, "it still has everything"
    await town.until_led("t", 2)
    assert await produce(town[2], "t", b"a") == 0


@in_town()
async def test_what_only_it_can_lead_it_leads_to_the_end(town: Town) -> None:
    await town.make_topic("t", (1,))
    began = town.world.clock.monotonic()
    await town[1].host.start(town[1].broker.cluster.hand_over(), "hand over")
    assert town.world.clock.monotonic() - began < 1, "there is nothing to wait for"
    assert await produce(town[1], "t", b"a") == 0


@in_town()
async def test_when_all_go_nobody_waits_for_the_others_to_take_over(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for index in range(3):
        await town.until_in_sync("t", index=index)
    began = town.world.clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for house in town.up:
            group.create_task(_hand_over(town, house.node_id))
    assert town.world.clock.monotonic() - began < 2


async def _hand_over(town: Town, node_id: int) -> None:
    await town[node_id].host.start(town[node_id].broker.cluster.hand_over(), "hand over")


@in_town(1)
async def test_alone_there_is_nobody_to_hand_over_to(town: Town) -> None:
    await town.make_topic("t", (1,))
    began = town.world.clock.monotonic()
    await _hand_over(town, 1)
    assert town.world.clock.monotonic() == pytest.approx(began, abs=0.01)
    assert await produce(town[1], "t", b"a") == 0


@in_town()
async def test_the_end_of_the_session_is_told_when_it_goes(town: Town) -> None:
    await town[3].close()
    assert live_key(3) not in town.truth.entries
    await town.until(lambda: list(town[1].broker.catalogue.nodes) == [1, 2])
