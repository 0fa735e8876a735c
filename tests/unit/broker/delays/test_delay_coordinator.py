"""Delayed messages are released to their topic on time, once, and unchanged."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import (
    DELAYED,
    TOPIC,
    delay,
    events,
    message,
    now_ms,
    origin,
    seen,
    until_ms,
    values,
)
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import Transactor

from headrace.broker.partition import Partition
from headrace.storage.log.reading import LogSlice
from headrace.testkit.clock import START_MS
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.batches.compression import GZIP
from headrace.wire.state_records.delayed_records import Cancelled, Dropped, Releasing, build_event


async def test_a_message_is_released_unchanged_after_its_delay(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"later", delay="1500ms", note="keep"))

    await until_ms(simulated_broker, sent_ms + 1490)
    assert await values(simulated_broker) == []
    await until_ms(simulated_broker, sent_ms + 1530)

    (one,) = await seen(simulated_broker)
    assert (one.value, one.key) == (b"later", b"k")
    assert one.headers == {"headrace-note": b"keep", "headrace-delayed-id": f"{DELAYED}:0:{offset}".encode()}
    assert sent_ms + 1500 <= one.timestamp_ms <= sent_ms + 1520


@pytest.mark.parametrize("due", ["1700000090000", "2023-11-14T22:14:50Z", "2023-11-14T23:14:50.000+01:00"])
async def test_a_message_can_have_an_absolute_due_time(simulated_broker: SimulatedBroker, due: str) -> None:
    assert START_MS == 1_700_000_000_000
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"later", deliver_at=due, delay="1s"))

    await until_ms(simulated_broker, START_MS + 89_990)
    assert await values(simulated_broker) == []
    await until_ms(simulated_broker, START_MS + 90_030)
    assert await values(simulated_broker) == [b"later"]


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


async def test_no_message_is_released_before_its_due_time(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    due_ms = now_ms(simulated_broker) + 1000
    await delay(simulated_broker, message(simulated_broker, b"later", deliver_at=str(due_ms)))
    while now_ms(simulated_broker) < due_ms:
        await delay(simulated_broker, message(simulated_broker, b"now"))
        if due_ms - 100 < now_ms(simulated_broker) < due_ms:
            simulated_broker.broker.delayed.of(TOPIC, 0)._ahead_ms = 50.0  # as if commits took so long
            assert b"later" not in records(simulated_broker.partition(TOPIC))
    await simulated_broker.pass_time(0.1)
    (one,) = [one for one in await seen(simulated_broker) if one.value == b"later"]
    assert due_ms <= one.timestamp_ms <= due_ms + 20


async def test_messages_are_released_in_the_order_of_their_due_times(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    later = [message(simulated_broker, b"%d" % second, delay=f"{second}s") for second in (5, 1, 4, 300, 2, 90_000, 3)]
    await delay(simulated_broker, *later)

    await simulated_broker.pass_time(301)

    assert await values(simulated_broker) == [b"1", b"2", b"3", b"4", b"5", b"300"]


async def test_a_message_without_a_due_time_is_released_at_once(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"now"), message(simulated_broker, b"past", deliver_at="5"))

    await simulated_broker.pass_time(0.1)

    assert await values(simulated_broker) == [b"now", b"past"]


async def test_an_invalid_due_time_is_ignored_and_kept_in_the_headers(
    simulated_broker: SimulatedBroker,
) -> None:
    await delayed.make(simulated_broker)
    await delay(
        simulated_broker, message(simulated_broker, b"odd", delay="10 sec", deliver_at="tomorrow", repeat="often")
    )

    await simulated_broker.pass_time(0.1)

    (one,) = await seen(simulated_broker)
    assert {name: value for name, value in one.headers.items() if name != "headrace-delayed-id"} == {
        "headrace-delay": b"10 sec",
        "headrace-deliver-at": b"tomorrow",
        "headrace-repeat": b"often",
    }


async def test_a_message_that_was_delayed_before_bears_its_last_id(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"again", delayed_id="__delayed.t:0:999"))
    await simulated_broker.pass_time(0.1)
    (one,) = await seen(simulated_broker)
    assert origin(one) == f"{DELAYED}:0:{offset}".encode()


async def test_nulls_and_compressed_batches_are_released_as_they_are(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    records = [
        BatchRecord(
            key=None, value=b"x" * 1000, headers=[("headrace-delay", b"1s")], timestamp_ms=now_ms(simulated_broker)
        ),
        BatchRecord(
            key=b"gone",
            value=None,
            headers=[("headrace-delay", b"2s"), ("n", None)],
            timestamp_ms=now_ms(simulated_broker),
        ),
    ]
    await delay(simulated_broker, *records, compression=GZIP)

    await simulated_broker.pass_time(3)

    first, second = await seen(simulated_broker)
    assert (first.key, first.value) == (None, b"x" * 1000)
    assert (second.key, second.value, second.headers["n"]) == (b"gone", b"", None)


async def test_the_topic_gets_its_compression(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker, compression_type="gzip")
    await delay(simulated_broker, *[message(simulated_broker, b"x" * 1000) for _ in range(20)])
    await simulated_broker.pass_time(0.1)
    assert await values(simulated_broker) == [b"x" * 1000] * 20
    assert simulated_broker.partition(TOPIC).log.size_bytes < 2000


async def test_many_that_are_due_at_once_are_released_in_batches(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    for first in range(0, 2500, 500):
        await delay(
            simulated_broker,
            *[message(simulated_broker, b"%d" % n, deliver_at=str(START_MS + 5000)) for n in range(first, first + 500)],
        )
    await until_ms(simulated_broker, START_MS + 6000)
    assert await values(simulated_broker) == [b"%d" % n for n in range(2500)]
    announced = [event for event in await events(simulated_broker) if isinstance(event, Releasing)]
    assert [len(event.offsets) for event in announced] == [1000, 1000, 500]
    assert [event.sequence for event in announced] == [0, 1000, 2000]


async def test_large_messages_are_released_few_at_a_time(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker, max_message_bytes="300000")
    for _ in range(3):
        await delay(
            simulated_broker,
            *[message(simulated_broker, b"x" * 90_000, deliver_at=str(START_MS + 5000)) for _ in range(5)],
        )
    await until_ms(simulated_broker, START_MS + 6000)
    assert len(await values(simulated_broker)) == 15
    announced = [event for event in await events(simulated_broker) if isinstance(event, Releasing)]
    assert max(len(event.offsets) for event in announced) == 3


async def test_an_accepted_message_is_released_even_if_it_now_exceeds_max_message_bytes(
    simulated_broker: SimulatedBroker,
) -> None:
    await delayed.make(simulated_broker, max_message_bytes="1000")
    await delay(simulated_broker, message(simulated_broker, b"x" * 5000), message(simulated_broker, b"small"))
    await simulated_broker.pass_time(0.1)
    assert await values(simulated_broker) == [b"x" * 5000, b"small"]


async def test_a_compacted_topic_accepts_only_delayed_messages_with_keys(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker, cleanup_policy="compact")
    await delay(simulated_broker, message(simulated_broker, b"keyless", key=None), message(simulated_broker, b"keyed"))
    await simulated_broker.pass_time(0.1)
    assert await values(simulated_broker) == [b"keyed"]
    assert [event.offsets for event in await events(simulated_broker) if isinstance(event, Dropped)] == [[0]]


async def test_messages_of_a_transaction_are_released_after_its_commit(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    committed, aborted = Transactor(simulated_broker, "one"), Transactor(simulated_broker, "two")
    for producer in (committed, aborted):
        assert await producer.init() == 0
        assert await producer.send(b"of " + producer.transactional_id.encode(), topic=DELAYED) == 0
    await delay(simulated_broker, message(simulated_broker, b"outside"))
    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"outside"]

    assert await aborted.abort() == 0
    assert await committed.commit() == 0

    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"outside", b"of one"]


async def test_an_event_copied_from_another_topic_is_ignored(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"safe", delay="5s"))
    foreign = memoryview(build_event(Cancelled(now_ms(simulated_broker), [offset])))
    copied = [
        BatchRecord(key=record.key, value=record.value, headers=record.headers, timestamp_ms=now_ms(simulated_broker))
        for record in delayed.records(bytes(foreign))
    ]
    await delay(simulated_broker, *copied)

    await simulated_broker.pass_time(10)

    assert await values(simulated_broker) == [b"safe"]


async def test_clients_can_still_write_to_the_topic_itself(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await produce(simulated_broker, TOPIC, b"direct")
    await delay(simulated_broker, message(simulated_broker, b"later", delay="1s"))
    await produce(simulated_broker, TOPIC, b"direct, too")
    await simulated_broker.pass_time(2)
    assert await values(simulated_broker) == [b"direct", b"direct, too", b"later"]


async def test_each_partition_has_its_own_delayed_messages(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker, partitions=2)
    await delay(simulated_broker, message(simulated_broker, b"one", delay="1s"), partition=1)
    await delay(simulated_broker, message(simulated_broker, b"zero", delay="1s"), partition=0)
    await simulated_broker.pass_time(2)
    assert await values(simulated_broker, partition=0) == [b"zero"]
    assert await values(simulated_broker, partition=1) == [b"one"]


async def test_completed_messages_are_trimmed_from_the_delayed_log(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    for _ in range(3):
        await delay(simulated_broker, message(simulated_broker, b"soon", delay="1s"))
    waiting = await delay(simulated_broker, message(simulated_broker, b"late", delay="2m"))
    await simulated_broker.pass_time(90)

    assert simulated_broker.partition(DELAYED).log.start_offset == waiting
    await simulated_broker.pass_time(60)
    assert await values(simulated_broker) == [b"soon"] * 3 + [b"late"]
    log = simulated_broker.partition(DELAYED).log
    await simulated_broker.pass_time(90)
    assert log.start_offset == log.end_offset


async def test_deleting_a_topic_deletes_its_delayed_messages(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"never", delay="5s"))
    await simulated_broker.delete_topic(TOPIC)
    await delayed.make(simulated_broker)
    await simulated_broker.pass_time(10)
    assert await values(simulated_broker) == []


async def test_a_clock_that_jumps_ahead_makes_the_messages_in_between_due(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"later", delay="1h"))
    simulated_broker.host.clock.jump(3_600_000)
    await simulated_broker.pass_time(11)
    assert await values(simulated_broker) == [b"later"]


async def test_an_event_header_alone_is_no_event_and_is_not_released(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"safe", delay="5s"))
    await delay(simulated_broker, BatchRecord(value=b"{}", headers=[("headrace-event", b"cancelled")], timestamp_ms=0))
    await simulated_broker.pass_time(10)
    assert [origin(one) for one in await seen(simulated_broker)] == [f"{DELAYED}:0:{offset}".encode()]


def test_an_event_is_a_batch_that_no_client_library_produces() -> None:
    ordinary = build_batch([BatchRecord(value=b"x")])
    own = build_event(Cancelled(1, [2]))
    assert ordinary[53:57] != own[53:57]
