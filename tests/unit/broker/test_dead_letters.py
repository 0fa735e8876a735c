"""Dead letters: copied once, with everything that was known, wherever their topic is led."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import fetch_request, fetched, send
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.model.errors import HeadraceError, NotLeader, OffsetNotAvailable, UnknownTopicOrPartition
from headrace.model.message_headers import DEAD_DEDUP_ID, DEDUP_ID, REDRIVEN, Death, death_of, header_of
from headrace.registry.topics import Topics
from headrace.wire.batch import Record, build_batch, parse_header, read_records
from headrace.wire.compression import NONE, ZSTD
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


async def bury(house: House, offset: int = 0, *, index: int = 0, topic: str = "t", attempts: int = 5) -> None:
    burying = house.broker.dead_letters.bury(topic, index, offset, "workers", attempts, "boom")
    await house.host.start(burying, "bury")


async def dead(house: House, topic: str = "t.dlq") -> list[Record]:
    response = await house.ask(fetch_request({(topic, 0): 0}), 11)
    data = fetched(response)[topic, 0]
    assert data.error_code == 0
    view = memoryview(data.records or b"")
    found: list[Record] = []
    while view:
        header = parse_header(view)
        found += read_records(view[: header.size_bytes], header, 1 << 24)
        view = view[header.size_bytes :]
    return found


async def put(house: House, *records: Record, compression: int = NONE) -> None:
    answer = await send(house, "t", build_batch(records, compression=compression))
    assert answer.error_code == 0


@pytest.mark.parametrize("compression", [NONE, ZSTD])
async def test_a_dead_letter_is_the_message_and_why_it_is_dead(house: House, compression: int) -> None:
    await house.make_topic("t", 1)
    await put(house, Record(b"j", b"other"), Record(b"k", b"value", [("type", b"order")]), compression=compression)
    await bury(house, 1)
    (letter,) = await dead(house)
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"value", ("type", b"order"))
    now_ms = house.host.clock.now_ms()
    death = death_of(letter.headers)
    assert death is not None
    assert death == Death("boom", 5, "workers", "t", 0, 1, death.at_ms, house.broker.catalogue.topic("t").id)
    assert 0 <= now_ms - death.at_ms < 1000


async def test_the_topic_is_made_with_the_first_dead_letter_and_keeps_them(house: House) -> None:
    await house.make_topic("t", 3, max_message_bytes="5000")
    await put(house, Record(value=b"a"))
    await bury(house)
    made = house.broker.catalogue.topic("t.dlq")
    assert made.partition_count == 1
    assert (made.config.retention_ms, made.config.retention_mode) == (-1, "acked")
    assert made.config.dedup_window_ms > 0
    assert made.config.max_message_bytes > 5000


async def test_the_topic_is_deleted_with_its_source(house: House) -> None:
    await house.make_topic("t")
    await put(house, Record(value=b"a"))
    await bury(house)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t"), DeleteTopicState(name="t.dlq")])
    answer = await house.ask(request, 6)
    assert [(one.name, one.error_code) for one in answer.responses] == [("t", 0), ("t.dlq", 0)]
    assert house.broker.catalogue.find("t.dlq") is None
    await house.make_topic("t")
    await put(house, Record(value=b"b"))
    await bury(house)
    assert [letter.value for letter in await dead(house)] == [b"b"]


async def test_a_topic_that_a_client_created_for_dead_letters_stays_and_drops_none_of_a_later_source(
    house: House,
) -> None:
    """The two letters have the same subscription, topic name, partition, offset and attempts."""
    await house.make_topic("t.dlq", dedup_window_ms="600000")
    for value in (b"a", b"b"):
        await house.make_topic("t")
        await put(house, Record(value=value))
        await bury(house)
        await house.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)
    assert [letter.value for letter in await dead(house)] == [b"a", b"b"]


async def test_no_dead_letter_topic_is_made_for_a_topic_that_is_deleted_meanwhile(house: House) -> None:
    """The broker that leads the topic has not heard of it."""
    await house.make_topic("t")
    await put(house, Record(value=b"a"))
    await Topics(house.registry).delete("t", house.broker.catalogue.topic("t").id, 0)
    with pytest.raises(HeadraceError, match="was deleted"):
        await bury(house)
    assert await house.registry.get("/topics/t.dlq") is None


async def test_a_copy_that_is_made_again_is_stored_once(house: House) -> None:
    await house.make_topic("t")
    await put(house, Record(value=b"a"), Record(value=b"b"))
    await bury(house, 0)
    await bury(house, 0)
    house.kill(keep_page_cache=False)
    await house.open()
    await house.pass_time(1)
    await bury(house, 0)
    await bury(house, 1)
    assert [letter.value for letter in await dead(house)] == [b"a", b"b"]


async def test_a_message_that_dies_twice_is_two_dead_letters(house: House) -> None:
    await house.make_topic("t")
    await put(house, Record(value=b"a"))
    await bury(house, attempts=5)
    await bury(house, attempts=6)
    assert len(await dead(house)) == 2


async def test_the_id_that_a_message_had_is_kept(house: House) -> None:
    await house.make_topic("t")
    await put(house, Record(None, b"a", [(DEDUP_ID, b"\xffmine"), (REDRIVEN, b"2")]))
    await bury(house)
    (letter,) = await dead(house)
    assert header_of(letter.headers, DEDUP_ID) == f"workers/{house.broker.catalogue.topic('t').id}/0/0/5".encode()
    assert header_of(letter.headers, DEAD_DEDUP_ID) == b"\xffmine"
    assert header_of(letter.headers, REDRIVEN) == b"2"


async def test_a_message_that_is_gone_leaves_no_dead_letter(house: House) -> None:
    await house.make_topic("t")
    await put(house, Record(value=b"a"), Record(value=b"b"))
    await house.host.start(house.partition("t").log.advance_start(1), "advance")
    await bury(house, 0)
    assert house.broker.catalogue.find("t.dlq") is None


@in_town(2)
async def test_a_message_above_the_high_watermark_is_retried_and_never_taken_for_gone(town: Town) -> None:
    """After a restart of all brokers the leader learns only from its follower what is committed."""
    await town.make_topic("t", (1, 2), min_insync_replicas="2")
    await town.until_in_sync("t")
    await put(town[1], Record(value=b"a"))
    for broker in list(town.up):
        broker.kill()
    await town.open(1)
    await town.until_led("t", 1)
    assert town.replica(1, "t").high_watermark == 0
    with pytest.raises(OffsetNotAvailable):
        await bury(town[1], 0)
    await town.open(2)
    await town.until_in_sync("t")
    await town.until(lambda: town.replica(1, "t").high_watermark == 1)
    await bury(town[1], 0)
    assert [letter.value for letter in await dead(await town.until_led("t.dlq"))] == [b"a"]


async def test_a_dead_letter_does_not_die_again(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.make_topic("t.dlq")
    answer = await send(house, "t.dlq", build_batch([Record(value=b"a")]))
    assert answer.error_code == 0
    await bury(house, topic="t.dlq")
    assert house.broker.catalogue.find("t.dlq.dlq") is None
    assert "subscription=workers dead_letter=t.dlq:0:0 attempts=5 reason=boom" in caplog.text


async def test_who_cannot_bury_is_told(house: House) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await bury(house)
    await house.make_topic("t")
    await put(house, Record(value=b"a"))
    await house.make_topic("t.dlq", max_message_bytes="10")
    with pytest.raises(HeadraceError, match=r"max\.message\.bytes of the topic is 10"):
        await bury(house)


async def test_a_message_as_large_as_it_may_be_has_room(house: House) -> None:
    await house.make_topic("t", max_message_bytes="100000")
    await put(house, Record(value=b"x" * 99_900))
    await bury(house)
    assert len(await dead(house)) == 1


@in_town()
async def test_a_dead_letter_goes_to_whoever_leads_its_topic(town: Town) -> None:
    await town.make_topic("t", (1,))
    await town.make_topic("t.dlq", (2, 3), dedup_window_ms="60000")
    await put(town[1], Record(value=b"a"))
    await bury(town[1])
    await bury(town[1])
    assert [letter.value for letter in await dead(town[2])] == [b"a"]
    await town.until_in_sync("t.dlq")
    await town.move_lead("t.dlq", 3)
    await town.until(lambda: all(led.is_loaded for led in town[3].broker.dedup._led.values()))
    await town.until(lambda: town[1].broker.catalogue.place("t.dlq", 0).leader == 3)
    await bury(town[1])
    assert [letter.value for letter in await dead(town[3])] == [b"a"]


@in_town()
async def test_the_topic_of_dead_letters_has_as_many_replicas(town: Town) -> None:
    await town.make_topic("t", (1, 2), min_insync_replicas="2")
    await town.until_in_sync("t")
    await put(town[1], Record(value=b"a"))
    await bury(town[1])
    assert len(town.record("t.dlq").replicas) == 2
    assert town[1].broker.catalogue.topic("t.dlq").config.min_insync_replicas == 2


@in_town(2)
async def test_while_nobody_leads_their_topic_nothing_is_buried(town: Town) -> None:
    await town.make_topic("t", (1,))
    await town.make_topic("t.dlq", (2,))
    await put(town[1], Record(value=b"a"))
    town[2].kill()
    await town.until(lambda: town[1].broker.catalogue.leader_node("t.dlq", 0) is None)
    with pytest.raises(NotLeader, match=r"partition t\.dlq-0 has no leader"):
        await bury(town[1])
