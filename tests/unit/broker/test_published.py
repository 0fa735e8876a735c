"""When messages were published is read from the header of their batch, in memory or in the log."""

from __future__ import annotations

from tests.unit.broker.asking import TIMESTAMP_MS, batch, produce
from tests.unit.broker.house import House

from headrace.broker.published import published_in
from headrace.machines.leases import UNKNOWN
from headrace.storage.reading import LogSlice


async def test_the_first_batch_tells_with_its_newest_message(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b", b"c")
    await produce(house, "t", b"d", timestamp_ms=TIMESTAMP_MS + 5000)
    for offset, timestamp_ms in ((0, TIMESTAMP_MS + 2), (1, TIMESTAMP_MS + 2), (3, TIMESTAMP_MS + 5000)):
        piece = house.partition("t").read(offset, 1_000_000)
        assert isinstance(piece, LogSlice)
        assert published_in(piece) == published_in(piece.bytes()) == timestamp_ms
        piece.release()


def test_what_has_no_timestamp_tells_nothing() -> None:
    assert published_in(b"") == UNKNOWN
    assert published_in(LogSlice(None, 0, 0, 0)) == UNKNOWN
    assert published_in(bytes(batch(b"a", timestamp_ms=-1))) == UNKNOWN
