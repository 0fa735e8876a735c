"""Delayed messages come to their topic in time, once, as they were sent."""

from __future__ import annotations

import pytest
from tests.unit.broker import delayed
from tests.unit.broker.asking import produce
from tests.unit.broker.delayed import DELAYED, TOPIC, delay, events, message, now_ms, origin, seen, until_ms, values
from tests.unit.broker.house import House
from tests.unit.broker.transacting import Transactor

from headrace.broker.partition import Partition
from headrace.storage.reading import LogSlice
from headrace.testkit.clock import START_MS
from headrace.wire.batch import Record, build_batch
from headrace.wire.compression import GZIP
from headrace.wire.delayed_records import Cancelled, Dropped, Releasing, build_event


async def test_a_message_comes_when_its_delay_is_over_as_it_was_sent(house: House) -> None:
    await delayed.make(house)
    sent_ms = now_ms(house)
    offset = await delay(house, message(house, b"later", delay="1500ms", note="keep"))

    await until_ms(house, sent_ms + 1490)
    assert await values(house) == []
    await until_ms(house, sent_ms + 1530)

    (one,) = await seen(house)
    assert (one.value, one.key) == (b"later", b"k")
    assert one.headers == {"headrace-note": b"keep", "headrace-delayed-id": f"{DELAYED}:0:{offset}".encode()}
    assert sent_ms + 1500 <= one.timestamp_ms <= sent_ms + 1520


@pytest.mark.parametrize("due", ["1700000090000", "2023-11-14T22:14:50Z", "2023-11-14T23:14:50.000+01:00"])
async def test_a_message_can_say_the_time_itself(house: House, due: str) -> None:
    assert START_MS == 1_700_000_000_000
    await delayed.make(house)
    await delay(house, message(house, b"later", deliver_at=due, delay="1s"))

    await until_ms(house, START_MS + 89_990)
    assert await values(house) == []
    await until_ms(house, START_MS + 90_030)
    assert await values(house) == [b"later"]


def records(partition: Partition) -> list[bytes | None]:
    """What is in the log, committed or not."""
    offset, found = partition.log.start_offset, []
    while offset < partition.log.end_offset:
        piece = partition.read(offset, 1 << 20, partition.log.end_offset)
        assert isinstance(piece, LogSlice)
        found += [record.value for record in delayed.records(piece.bytes())]
        piece.release()
        offset = piece.next_offset
    return found


async def test_nothing_comes_before_its_time_whatever_else_happens(house: House) -> None:
    await delayed.make(house)
    due_ms = now_ms(house) + 1000
    await delay(house, message(house, b"later", deliver_at=str(due_ms)))
    while now_ms(house) < due_ms:
        await delay(house, message(house, b"now"))
        if due_ms - 100 < now_ms(house) < due_ms:
            house.broker.delayed.of(TOPIC, 0)._ahead_ms = 50.0  # as if commits took so long
            assert b"later" not in records(house.partition(TOPIC))
    await house.pass_time(0.1)
    (one,) = [one for one in await seen(house) if one.value == b"later"]
    assert due_ms <= one.timestamp_ms <= due_ms + 20


async def test_messages_come_in_the_order_of_their_times(house: House) -> None:
    await delayed.make(house)
    later = [message(house, b"%d" % second, delay=f"{second}s") for second in (5, 1, 4, 300, 2, 90_000, 3)]
    await delay(house, *later)

    await house.pass_time(301)

    assert await values(house) == [b"1", b"2", b"3", b"4", b"5", b"300"]


async def test_a_message_without_a_time_comes_at_once(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"now"), message(house, b"past", deliver_at="5"))

    await house.pass_time(0.1)

    assert await values(house) == [b"now", b"past"]


async def test_a_time_that_cannot_be_read_holds_nothing_up_and_stays_to_be_seen(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"odd", delay="10 sec", deliver_at="tomorrow", repeat="often"))

    await house.pass_time(0.1)

    (one,) = await seen(house)
    assert {name: value for name, value in one.headers.items() if name != "headrace-delayed-id"} == {
        "headrace-delay": b"10 sec",
        "headrace-deliver-at": b"tomorrow",
        "headrace-repeat": b"often",
    }


async def test_a_message_that_was_delayed_before_bears_its_last_id(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"again", delayed_id="__delayed.t:0:999"))
    await house.pass_time(0.1)
    (one,) = await seen(house)
    assert origin(one) == f"{DELAYED}:0:{offset}".encode()


async def test_nulls_and_compressed_batches_are_released_as_they_are(house: House) -> None:
    await delayed.make(house)
    records = [
        Record(key=None, value=b"x" * 1000, headers=[("headrace-delay", b"1s")], timestamp_ms=now_ms(house)),
        Record(key=b"gone", value=None, headers=[("headrace-delay", b"2s"), ("n", None)], timestamp_ms=now_ms(house)),
    ]
    await delay(house, *records, compression=GZIP)

    await house.pass_time(3)

    first, second = await seen(house)
    assert (first.key, first.value) == (None, b"x" * 1000)
    assert (second.key, second.value, second.headers["n"]) == (b"gone", b"", None)


async def test_the_topic_gets_its_compression(house: House) -> None:
    await delayed.make(house, compression_type="gzip")
    await delay(house, *[message(house, b"x" * 1000) for _ in range(20)])
    await house.pass_time(0.1)
    assert await values(house) == [b"x" * 1000] * 20
    assert house.partition(TOPIC).log.size_bytes < 2000


async def test_many_that_are_due_at_once_are_released_in_batches(house: House) -> None:
    await delayed.make(house)
    for first in range(0, 2500, 500):
        await delay(
            house, *[message(house, b"%d" % n, deliver_at=str(START_MS + 5000)) for n in range(first, first + 500)]
        )
    await until_ms(house, START_MS + 6000)
    assert await values(house) == [b"%d" % n for n in range(2500)]
    announced = [event for event in await events(house) if isinstance(event, Releasing)]
    assert [len(event.offsets) for event in announced] == [1000, 1000, 500]
    assert [event.sequence for event in announced] == [0, 1000, 2000]


async def test_large_messages_are_released_few_at_a_time(house: House) -> None:
    await delayed.make(house, max_message_bytes="300000")
    for _ in range(3):
        await delay(house, *[message(house, b"x" * 90_000, deliver_at=str(START_MS + 5000)) for _ in range(5)])
    await until_ms(house, START_MS + 6000)
    assert len(await values(house)) == 15
    announced = [event for event in await events(house) if isinstance(event, Releasing)]
    assert max(len(event.offsets) for event in announced) == 3


async def test_a_message_that_was_accepted_comes_even_if_it_is_too_large_for_the_topic_now(house: House) -> None:
    await delayed.make(house, max_message_bytes="1000")
    await delay(house, message(house, b"x" * 5000), message(house, b"small"))
    await house.pass_time(0.1)
    assert await values(house) == [b"x" * 5000, b"small"]


async def test_a_compacted_topic_takes_only_messages_with_keys(house: House) -> None:
    await delayed.make(house, cleanup_policy="compact")
    await delay(house, message(house, b"keyless", key=None), message(house, b"keyed"))
    await house.pass_time(0.1)
    assert await values(house) == [b"keyed"]
    assert [event.offsets for event in await events(house) if isinstance(event, Dropped)] == [[0]]


async def test_messages_of_a_transaction_come_when_it_is_committed(house: House) -> None:
    await delayed.make(house)
    committed, aborted = Transactor(house, "one"), Transactor(house, "two")
    for producer in (committed, aborted):
        assert await producer.init() == 0
        assert await producer.send(b"of " + producer.transactional_id.encode(), topic=DELAYED) == 0
    await delay(house, message(house, b"outside"))
    await house.pass_time(1)
    assert await values(house) == [b"outside"]

    assert await aborted.abort() == 0
    assert await committed.commit() == 0

    await house.pass_time(1)
    assert await values(house) == [b"outside", b"of one"]


async def test_an_event_that_was_copied_from_elsewhere_is_none(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"safe", delay="5s"))
    foreign = memoryview(build_event(Cancelled(now_ms(house), [offset])))
    copied = [
        Record(key=record.key, value=record.value, headers=record.headers, timestamp_ms=now_ms(house))
        for record in delayed.records(bytes(foreign))
    ]
    await delay(house, *copied)

    await house.pass_time(10)

    assert await values(house) == [b"safe"]


async def test_clients_can_still_write_to_the_topic_itself(house: House) -> None:
    await delayed.make(house)
    await produce(house, TOPIC, b"direct")
    await delay(house, message(house, b"later", delay="1s"))
    await produce(house, TOPIC, b"direct, too")
    await house.pass_time(2)
    assert await values(house) == [b"direct", b"direct, too", b"later"]


async def test_each_partition_has_its_own(house: House) -> None:
    await delayed.make(house, partitions=2)
    await delay(house, message(house, b"one", delay="1s"), partition=1)
    await delay(house, message(house, b"zero", delay="1s"), partition=0)
    await house.pass_time(2)
    assert await values(house, partition=0) == [b"zero"]
    assert await values(house, partition=1) == [b"one"]


async def test_what_is_over_is_trimmed_from_the_delayed_log(house: House) -> None:
    await delayed.make(house)
    for _ in range(3):
        await delay(house, message(house, b"soon", delay="1s"))
    waiting = await delay(house, message(house, b"late", delay="2m"))
    await house.pass_time(90)

    assert house.partition(DELAYED).log.start_offset == waiting
    await house.pass_time(60)
    assert await values(house) == [b"soon"] * 3 + [b"late"]
    log = house.partition(DELAYED).log
    await house.pass_time(90)
    assert log.start_offset == log.end_offset


async def test_a_topic_that_was_deleted_takes_its_delayed_messages_with_it(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"never", delay="5s"))
    await house.delete_topic(TOPIC)
    await delayed.make(house)
    await house.pass_time(10)
    assert await values(house) == []


async def test_a_clock_that_jumps_ahead_makes_due_what_lies_in_between(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"later", delay="1h"))
    house.host.clock.jump(3_600_000)
    await house.pass_time(11)
    assert await values(house) == [b"later"]


async def test_the_header_of_an_event_alone_makes_none_and_is_not_released(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"safe", delay="5s"))
    await delay(house, Record(value=b"{}", headers=[("headrace-event", b"cancelled")], timestamp_ms=0))
    await house.pass_time(10)
    assert [origin(one) for one in await seen(house)] == [f"{DELAYED}:0:{offset}".encode()]


def test_an_event_is_a_batch_that_no_client_library_makes() -> None:
    ordinary = build_batch([Record(value=b"x")])
    own = build_event(Cancelled(1, [2]))
    assert ordinary[53:57] != own[53:57]
