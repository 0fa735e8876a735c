"""Produce: partitions stand for themselves, order is kept, and nothing is answered before it is committed."""

from __future__ import annotations

import asyncio
import errno
import hashlib

import pytest
from tests.unit.broker.asking import (
    answers,
    batch,
    fetch_request,
    fetched,
    only,
    produce,
    produce_request,
    read_all,
    send,
)
from tests.unit.broker.house import House, Visit
from tests.unit.broker.town import Town, in_town

from headrace.broker.refusals import PATIENCE_SECONDS
from headrace.model.errors import DiskNearlyFull, NotLeader, OutOfOrderSequence
from headrace.wire.batch import parse_header, set_crc
from headrace.wire.compression import GZIP, NONE, ZSTD
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


async def test_what_was_produced_can_be_read_also_after_every_kind_of_end(house: House) -> None:
    await house.make_topic("t")
    assert await produce(house, "t", b"a", b"b") == 0
    assert await produce(house, "t", b"c") == 2
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    await house.restart()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    house.kill()
    await house.open()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    house.kill(keep_page_cache=False)
    await house.open()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(3, 13))
async def test_every_version_is_answered(house: House, version: int) -> None:
    await house.make_topic("t")
    answer = await send(house, "t", batch(b"a"), version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert answer.log_start_offset == (0 if version >= 5 else -1)


async def test_version_13_names_topics_by_id(house: House) -> None:
    await house.make_topic("t")
    topic = house.broker.catalogue.topic("t")
    data = [PartitionProduceData(index=0, records=memoryview(batch(b"a")))]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic.id)])
    request.topic_data[0].partition_data = data
    response = await house.ask(request, 13)
    assert (response.responses[0].topic_id, only(response).error_code) == (topic.id, 0)
    request.topic_data[0].topic_id = house.host.entropy.uuid()
    assert only(await house.ask(request, 13)).error_code == 100


async def test_nothing_is_answered_before_it_is_on_disk(house: House) -> None:
    await house.make_topic("t")
    asking = house.begin(produce_request({("t", 0): batch(b"a")}), 9)
    await house.turn()
    partition = house.partition("t")
    assert (partition.log.end_offset, partition.high_watermark) == (1, 0)
    assert not asking.done()
    await asking
    assert partition.log.flushed_offset == partition.high_watermark == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_acks_1_waits_for_the_disk_like_acks_all(house: House, acks: int) -> None:
    await house.make_topic("t")
    await send(house, "t", batch(b"a"), acks=acks)
    assert house.partition("t").log.flushed_offset == 1


async def test_some_partitions_may_fail_where_others_succeed(house: House) -> None:
    await house.make_topic("t", 2)
    await house.make_topic("compacted", cleanup_policy="compact")
    damaged = batch(b"x")
    damaged[-1] ^= 1
    request = produce_request(
        {
            ("t", 0): batch(b"a"),
            ("t", 1): damaged,
            ("t", 2): batch(b"c"),
            ("t", -1): batch(b"c"),
            ("missing", 0): batch(b"d"),
            ("compacted", 0): batch(b"no key"),
        }
    )
    codes = {key: answer.error_code for key, answer in answers(await house.ask(request, 9)).items()}
    assert codes == {
        ("t", 0): 0,
        ("t", 1): 2,
        ("t", 2): 3,
        ("t", -1): 3,
        ("missing", 0): 3,
        ("compacted", 0): 87,
    }
    assert await read_all(house, "t") == [b"a"]


async def test_a_refusal_says_why_and_has_no_offset(house: House) -> None:
    await house.make_topic("t", max_message_bytes="100")
    answer = await send(house, "t", batch(b"x" * 100))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (10, -1, -1)
    assert answer.error_message is not None
    assert "max.message.bytes of the topic is 100" in answer.error_message


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_are_refused(house: House, acks: int) -> None:
    await house.make_topic("t")
    assert (await send(house, "t", batch(b"a"), acks=acks)).error_code == 21
    assert house.partition("t").log.end_offset == 0


async def test_internal_topics_are_not_for_clients(house: House) -> None:
    await house.broker.offsets_log.ensure()
    assert (await send(house, "__consumer_offsets", batch(b"a", key=b"k"))).error_code == 17


async def test_acks_0_is_appended_and_not_answered(house: House) -> None:
    await house.make_topic("t")
    visit = Visit()
    request = produce_request({("t", 0): batch(b"a")}, acks=0)
    assert await house.ask(request, 9, visit) is None
    assert not visit.closed
    assert not house.partition("t")._waiting
    await house.pass_time(0.1)
    assert await read_all(house, "t") == [b"a"]


async def test_a_refusal_without_an_answer_closes_the_connection(house: House) -> None:
    visit = Visit()
    assert await house.ask(produce_request({("missing", 0): batch(b"a")}, acks=0), 9, visit) is None
    assert visit.closed


# Idempotent producers


def numbered(*values: bytes, sequence: int, epoch: int = 0) -> bytearray:
    return batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


async def test_a_duplicate_is_answered_with_its_first_offset(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"other")
    for _ in range(2):
        first = await send(house, "t", numbered(b"a", b"b", sequence=0))
        second = await send(house, "t", numbered(b"c", sequence=2))
        assert (first.base_offset, second.base_offset) == (1, 3)
    assert await read_all(house, "t") == [b"other", b"a", b"b", b"c"]
    await house.restart()
    assert (await send(house, "t", numbered(b"c", sequence=2))).base_offset == 3
    house.kill(keep_page_cache=False)
    await house.open()
    assert (await send(house, "t", numbered(b"c", sequence=2))).base_offset == 3


async def test_a_duplicate_waits_until_the_original_is_committed(house: House) -> None:
    await house.make_topic("t")
    original = house.begin(produce_request({("t", 0): numbered(b"a", sequence=0)}), 9)
    duplicate = house.begin(produce_request({("t", 0): numbered(b"a", sequence=0)}), 9)
    await house.turn()
    assert house.partition("t").log.end_offset == 1
    assert not duplicate.done()
    assert only(await duplicate).base_offset == 0
    assert house.partition("t").high_watermark == 1
    assert only(await original).base_offset == 0


async def test_a_gap_or_an_old_epoch_is_refused(house: House) -> None:
    await house.make_topic("t")
    await send(house, "t", numbered(b"a", sequence=0, epoch=1))
    assert (await send(house, "t", numbered(b"c", sequence=2, epoch=1))).error_code == 45
    assert (await send(house, "t", numbered(b"b", sequence=1, epoch=0))).error_code == 47
    assert (await send(house, "t", numbered(b"b", sequence=1, epoch=1))).error_code == 0


async def test_a_refused_batch_is_not_remembered_of_its_producer(house: House) -> None:
    await house.make_topic("t")
    house.host.disk.fail_next("append", "*.log", errno.ENOSPC)
    assert (await send(house, "t", numbered(b"a", sequence=0))).error_code == 56
    assert (await send(house, "t", numbered(b"a", sequence=0))).base_offset == 0


# Batches that are unpacked in the disk threads


def large(size_bytes: int = 40_000) -> bytearray:
    """Records of 1000 bytes that cannot be packed much."""
    values = [hashlib.shake_256(b"%d" % at).digest(1000) for at in range(size_bytes // 1000)]
    return batch(*values, compression=GZIP)


async def test_a_large_packed_batch_holds_the_connection_until_it_is_appended(house: House) -> None:
    await house.make_topic("t")
    visit = Visit()
    asking = house.begin(produce_request({("t", 0): large()}), 9, visit)
    await house.turn()
    assert visit.holds == [True]
    assert house.partition("t").log.end_offset == 0
    answer = only(await asking)
    assert answer.error_code == 0
    assert visit.holds == [True, False]


async def test_packed_batches_that_wait_take_a_bounded_amount_of_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.produce._WAITING_BYTES_MAX", 100_000)
    await house.make_topic("t")
    asking = [house.begin(produce_request({("t", 0): large()}), 9) for _ in range(4)]
    codes = [only(await one).error_code for one in asking]
    assert codes == [0, 0, 7, 7]
    assert only(await house.ask(produce_request({("t", 0): large()}), 9)).error_code == 0


async def test_the_connection_is_released_before_the_commit_and_not_after(house: House) -> None:
    await house.make_topic("t")
    visit = Visit()
    asking = house.begin(produce_request({("t", 0): large()}), 9, visit)
    while visit.holds != [True, False]:
        await house.turn(1)
    assert house.partition("t").log.end_offset == 40
    assert not asking.done()
    await asking


async def test_a_large_batch_that_is_unsound_is_refused_and_the_others_are_not(house: House) -> None:
    await house.make_topic("t", 3)
    lying = large()
    header = parse_header(lying)
    lying[57:61] = (header.record_count + 1).to_bytes(4, "big")
    lying[23:27] = (header.last_offset_delta + 1).to_bytes(4, "big")
    set_crc(memoryview(lying))
    visit = Visit()
    request = produce_request({("t", 0): large(), ("t", 1): lying, ("t", 2): batch(b"small")})
    response = await house.ask(request, 9, visit)
    assert [answer.error_code for answer in answers(response).values()] == [0, 87, 0]
    assert visit.holds == [True, False]
    assert await read_all(house, "t", 2) == [b"small"]


async def test_a_large_batch_for_a_topic_that_is_deleted_meanwhile_is_refused(house: House) -> None:
    await house.make_topic("t")
    visit = Visit()
    asking = house.begin(produce_request({("t", 0): large()}), 9, visit)
    await house.turn()
    partition = house.partition("t")
    await house.delete_topic("t")
    assert only(await asking).error_code == 3
    assert visit.holds == [True, False]
    assert not partition._waiting


@pytest.mark.parametrize(("given", "name", "kept"), [(NONE, "zstd", ZSTD), (ZSTD, "uncompressed", NONE)])
async def test_the_topics_compression_is_what_is_kept(house: House, given: int, name: str, kept: int) -> None:
    await house.make_topic("t", compression_type=name)
    await send(house, "t", batch(b"a" * 100, b"b" * 100, compression=given))
    response = await house.ask(fetch_request({("t", 0): 0}), 11)
    records = fetched(response)["t", 0].records
    assert parse_header(records).compression == kept
    assert await read_all(house, "t") == [b"a" * 100, b"b" * 100]


# Disks


async def test_log_append_time_is_the_brokers_and_told(house: House) -> None:
    await house.make_topic("t", message_timestamp_type="LogAppendTime")
    answer = await send(house, "t", batch(b"a", timestamp_ms=1))
    assert answer.log_append_time_ms == pytest.approx(house.host.clock.now_ms(), abs=100)
    response = await house.ask(fetch_request({("t", 0): 0}), 11)
    header = parse_header(fetched(response)["t", 0].records)
    assert header.is_log_append_time
    assert header.max_timestamp == answer.log_append_time_ms


async def test_a_sync_that_fails_fails_everybody_who_waits_for_it(house: House) -> None:
    await house.make_topic("t")
    await house.make_topic("other")
    await produce(house, "t", b"a")
    house.host.disk.fail_next("sync", f"*{house.partition('t').topic_id.hex}*.log")
    asking = [house.begin(produce_request({("t", 0): batch(b"b")}), 9) for _ in range(3)]
    assert [only(await one).error_code for one in asking] == [56, 56, 56]
    assert (await send(house, "t", batch(b"c"))).error_code == 56
    assert (await send(house, "other", batch(b"c"))).error_code == 0
    assert await read_all(house, "t") == [b"a"], "what was not committed is not shown"


async def test_produce_is_refused_while_the_disk_is_nearly_full_and_goes_on_by_itself(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    capacity = house.host.disk.capacity_bytes
    house.host.disk.capacity_bytes = 1 << 20
    await house.pass_time(3)
    assert (await send(house, "t", batch(b"b"))).error_code == 56
    assert await read_all(house, "t") == [b"a"]
    house.host.disk.capacity_bytes = capacity
    await house.pass_time(3)
    assert (await send(house, "t", batch(b"b"))).error_code == 0


async def test_one_that_is_not_committed_in_time_is_told_so(house: House) -> None:
    await house.make_topic("t")
    house.host.disk.delay_seconds = (5.0, 5.0)
    request = produce_request({("t", 0): batch(b"a")}, timeout_ms=2000)
    assert only(await house.ask(request, 9)).error_code == 7
    await house.pass_time(20)
    house.host.disk.delay_seconds = (0.001, 0.001)
    assert await read_all(house, "t") == [b"a"], "it was appended all the same"


async def test_what_is_counted(house: House) -> None:
    await house.make_topic("t")
    data = batch(b"a", b"b")
    await send(house, "t", data)
    await send(house, "t", numbered(b"a", sequence=0))
    await send(house, "t", numbered(b"c", sequence=9))
    counts = house.broker.catalogue.topic("t").counts
    assert (counts.produces, counts.records_in, counts.failed_produces) == (2, 3, 1)
    assert counts.bytes_in > len(data)
    await house.ask(FetchRequest(), 4)
    assert counts.fetches == 0


@in_town(2)
async def test_acks_of_one_is_answered_when_the_leader_has_it_on_its_disk(town: Town) -> None:
    await town.make_topic("t")
    town.isolate(1)
    began = town.world.clock.monotonic()
    assert (await send(town[1], "t", batch(b"a"), acks=1)).error_code == 0
    assert town.world.clock.monotonic() - began < 1
    partition = town.replica(1, "t")
    assert (partition.log.flushed_offset, partition.high_watermark) == (1, 0)
    request = produce_request({("t", 0): batch(b"b")}, timeout_ms=2000)
    assert only(await town[1].ask(request, 9)).error_code == 7, "the others are waited for"


@in_town(2)
async def test_acks_of_one_waits_for_the_disk(town: Town) -> None:
    await town.make_topic("t")
    town[1].host.disk.delay_seconds = (1.0, 1.0)
    asking = town[1].begin(produce_request({("t", 0): batch(b"a")}, acks=1), 9)
    await asyncio.sleep(1)
    assert not asking.done()
    assert only(await asking).error_code == 0
    assert town.replica(1, "t").log.flushed_offset == 1


@pytest.mark.parametrize("acks", [1, -1])
@in_town(2)
async def test_whoever_waits_is_told_when_the_lead_moves(town: Town, acks: int) -> None:
    await town.make_topic("t")
    await town.until_in_sync("t")
    town.isolate(1)
    town[1].host.disk.delay_seconds = (0.3, 0.3)
    asking = town[1].begin(produce_request({("t", 0): batch(b"a")}, acks=acks), 9)
    await town[1].turn()
    await town.move_lead("t", 2)
    assert only(await asking).error_code == 6


@in_town(2)
async def test_too_few_replicas_in_sync_are_told_before_anything_is_appended(town: Town) -> None:
    await town.make_topic("t", min_insync_replicas="2")
    assert await produce(town[1], "t", b"a") == 0
    town[2].kill()
    await town.until_in_sync("t", 1)
    await town.until(lambda: town[1].broker.catalogue.place("t", 0).isr == (1,))
    assert (await send(town[1], "t", batch(b"b"))).error_code == 19
    partition = town.replica(1, "t")
    assert partition.log.end_offset == 1
    assert (await send(town[1], "t", batch(b"c"), acks=1)).error_code == 0, "who asks for less gets less"
    assert (partition.log.end_offset, partition.high_watermark) == (2, 1)
    await town.open(2)
    await town.until_in_sync("t")
    assert await produce(town[1], "t", b"d") == 2


@in_town(2)
async def test_more_in_sync_replicas_than_there_are_replicas_cannot_be_asked_for(town: Town) -> None:
    """As Kafka has it: the smaller of the two counts."""
    await town.make_topic("t", (1,), min_insync_replicas="2")
    assert await produce(town[1], "t", b"a") == 0


@in_town(2)
async def test_one_who_asks_a_follower_is_sent_away(town: Town) -> None:
    await town.make_topic("t")
    await town.until(lambda: town[2].broker.catalogue.find("t") is not None)
    assert (await send(town[2], "t", batch(b"a"))).error_code == 6
    assert (await send(town[2], "t", batch(b"a"), acks=1)).error_code == 6


@in_town(2, sessions_time_out=True)
async def test_a_leader_in_doubt_of_its_session_promises_nothing_by_itself(town: Town) -> None:
    """Another may lead by now; what all have in sync cannot be lost by that, what it has alone can (I13)."""
    await town.make_topic("t", (2, 1))
    town[2].registry.disconnect()
    await asyncio.sleep(0.01)
    answer = await send(town[2], "t", batch(b"a"), acks=1)
    assert (answer.error_code, town.replica(2, "t").log.end_offset) == (6, 0)
    assert await produce(town[2], "t", b"b") == 0
    town[2].registry.reconnect()
    await asyncio.sleep(0.1)
    assert (await send(town[2], "t", batch(b"c"), acks=1)).error_code == 0


async def test_a_batch_behind_one_that_was_refused_for_a_while_is_refused_for_the_same_reason(house: House) -> None:
    await house.make_topic("t")
    assert (await send(house, "t", numbered(b"a", sequence=0))).error_code == 0
    house.host.disk.capacity_bytes = 1000
    await house.pass_time(3)
    assert (await send(house, "t", numbered(b"b", sequence=1))).error_code == DiskNearlyFull.code
    house.host.disk.capacity_bytes = 1 << 40
    await house.pass_time(3)
    assert (await send(house, "t", numbered(b"c", sequence=2))).error_code == DiskNearlyFull.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(house, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    assert (await send(house, "t", numbered(b"x", sequence=9))).error_code == OutOfOrderSequence.code


@in_town(2)
async def test_a_batch_behind_one_that_came_before_the_lead_began_is_not_told_of_a_gap(town: Town) -> None:
    """Told of a gap, librdkafka begins a new epoch everywhere, and what it waits for in other partitions is doubled."""
    await town.make_topic("t", (1, 2))
    await send(town[1], "t", numbered(b"a", sequence=0))
    assert (await send(town[2], "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    house = await town.move_lead("t", 2)
    assert (await send(house, "t", numbered(b"c", sequence=2))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(house, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(house, "t") == [b"a", b"b", b"c"]


@in_town(2)
async def test_the_second_batch_of_a_new_producer_waits_for_the_first_that_came_before_the_lead_began(
    town: Town,
) -> None:
    await town.make_topic("t", (1, 2))
    assert (await send(town[2], "t", numbered(b"a", sequence=0))).error_code == NotLeader.code
    house = await town.move_lead("t", 2)
    assert (await send(house, "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    for value, sequence in ((b"a", 0), (b"b", 1)):
        assert (await send(house, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(house, "t") == [b"a", b"b"]


@in_town(2)
async def test_a_batch_is_not_told_of_a_gap_while_an_earlier_one_may_come_from_the_previous_leader(town: Town) -> None:
    """Chaos, seed 101: 256 records twice after an election. The client sent the second batch to the new leader while
    the previous one had not rejected the first yet."""
    await town.make_topic("t", (1, 2))
    await send(town[1], "t", numbered(b"a", sequence=0))
    await town.move_lead("t", 2)
    house = await town.move_lead("t", 1)  # the preferred leader, so that it stays
    assert (await send(house, "t", numbered(b"c", sequence=2))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(house, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    await asyncio.sleep(PATIENCE_SECONDS + 3)
    assert (await send(house, "t", numbered(b"e", sequence=4))).error_code == OutOfOrderSequence.code


@in_town(2)
async def test_what_was_refused_here_and_taken_by_another_leader_meanwhile_stands_in_nobodys_way(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await send(town[1], "t", numbered(b"a", sequence=0))
    assert (await send(town[2], "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(town[1], "t", numbered(value, sequence=sequence))).error_code == 0
    house = await town.move_lead("t", 2)
    assert (await send(house, "t", numbered(b"c", sequence=2))).base_offset == 2
    assert (await send(house, "t", numbered(b"d", sequence=3))).error_code == 0


async def test_a_gap_is_told_when_what_was_refused_before_it_does_not_come_again(house: House) -> None:
    await house.make_topic("t")
    assert (await send(house, "t", numbered(b"a", sequence=0))).error_code == 0
    house.host.disk.capacity_bytes = 1000
    await house.pass_time(3)
    assert (await send(house, "t", numbered(b"b", sequence=1))).error_code == DiskNearlyFull.code
    house.host.disk.capacity_bytes = 1 << 40
    await house.pass_time(PATIENCE_SECONDS + 3)
    assert (await send(house, "t", numbered(b"c", sequence=2))).error_code == OutOfOrderSequence.code
