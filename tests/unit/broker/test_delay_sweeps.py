"""A message that waits for long does not keep on disk what has come and gone since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.unit.broker import delayed
from tests.unit.broker.delayed import DELAYED, TOPIC, cancel, companion, delay, listed, message, values
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker.delayed_log import DelayedLog
from headrace.machines.settled import new_bitmap
from headrace.storage.cleaner import Chosen, Plan
from headrace.storage.compaction import Settled
from headrace.storage.log import Log

COUNT = 200
FILL = b"." * 300


@pytest.fixture(autouse=True)
def _small_logs() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr("headrace.broker.delay_sweeps.SWEEP_BYTES_MIN", 5000)
    patch.setattr("headrace.broker.companions._SEGMENT_BYTES", 4000)
    yield
    patch.undo()


async def load(house: House) -> None:
    """One that waits for long at the beginning, one in the middle, and many that come soon."""
    await delay(house, message(house, b"long", delay="1h"))
    for number in range(COUNT):
        if number == COUNT // 2:
            await delay(house, message(house, b"tick", repeat="every 1h", delay="0s"))
        await delay(house, message(house, b"%d" % number + FILL, delay="1s"))


def stored(house: House) -> Log:
    found = house.broker.catalogue.topic(DELAYED).local(0)
    assert found is not None
    return found.log


def check(found: list[bytes]) -> None:
    assert Counter(found) == Counter([b"tick", *(b"%d" % number + FILL for number in range(COUNT))])


async def test_what_is_over_goes_and_what_waits_comes(house: House) -> None:
    await delayed.make(house)
    await load(house)
    before_bytes = stored(house).size_bytes
    await house.pass_time(130)
    check(await values(house))
    assert stored(house).size_bytes < before_bytes / 2
    assert stored(house).start_offset == 0
    for _ in range(2):
        assert (await listed(house)).waiting == 2
        assert [bytes(one.value or b"") for one in (await listed(house)).messages] == [b"long", b"tick"]
        check(await values(house))
        await house.restart()
        await house.pass_time(5)
    await delay(house, message(house, b"new", delay="1s"))
    await house.pass_time(3600)
    assert Counter(await values(house))[b"tick"] == 2
    assert {b"long", b"new"} <= set(await values(house))


async def test_what_is_over_does_not_come_back_from_a_segment_that_was_not_cleaned(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.delay_lead._TRIM_SECONDS", 10_000.0)
    await delayed.make(house)
    expected = [b"%d" % number + FILL for number in range(COUNT)]
    for value in expected:
        await delay(house, message(house, value))
    before_bytes = stored(house).size_bytes
    await house.pass_time(130)
    assert stored(house).size_bytes < before_bytes
    house.kill()
    await house.open()
    await house.pass_time(5)
    assert await values(house) == expected


async def test_what_was_cancelled_or_is_not_decided_stays_so(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"long", delay="1h"))
    offset = await delay(house, message(house, b"never", delay="3m"))
    assert await cancel(house, offset) == 0
    await load(house)
    await house.pass_time(130)
    await house.restart()
    await house.pass_time(200)
    assert b"never" not in await values(house)


@in_town()
async def test_followers_clean_up_for_themselves_and_can_take_over(town: Town) -> None:
    await town.make_topic(TOPIC)
    leader = await town.until_led(TOPIC)
    await companion(leader)
    await town.until_in_sync(DELAYED)
    await load(leader)
    before_bytes = stored(leader).size_bytes
    await leader.pass_time(130)
    for house in town.up:
        assert stored(house).size_bytes < before_bytes / 2
    leader.kill()
    following = await town.until_led(TOPIC)
    await town.until_led(DELAYED)
    await following.pass_time(20)
    check(await values(following))
    assert (await listed(following)).waiting == 2


async def test_messages_that_are_gone_up_to_the_high_watermark_are_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap can reach to the high watermark when followers lag behind: what lies there is gone, and not unreadable."""
    await delayed.make(house)
    for value in (b"a", b"b", b"c"):
        await delay(house, message(house, value, delay="1h"))
    partition = house.partition(DELAYED)
    partition.log.roll()
    await delay(house, message(house, b"d", delay="1h"))
    removed = new_bitmap()
    removed.update({1, 2})
    (segment, following) = partition.log.segments
    plan = Plan([Chosen(segment, following.base_offset, segment.size)], settled=Settled(0, removed.serialize()))
    await house.host.start(house.broker.store.cleaner.carry_out(partition.log, lambda _: plan), "clean")
    for high_watermark, expected in ((3, [0]), (4, [0, 3])):
        monkeypatch.setattr(partition, "high_watermark", high_watermark)
        reading = DelayedLog(partition, house.host.clock).messages(range(high_watermark))
        assert sorted(await house.host.start(reading, "read")) == expected
