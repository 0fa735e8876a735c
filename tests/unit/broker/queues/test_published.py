"""The publish time of messages is read from their batch header, in memory or in the log."""

from __future__ import annotations

from tests.unit.broker.broker_requests import TIMESTAMP_MS, batch, produce
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.queues.lease_reader import newest_publish_time_ms
from headrace.machines.queues.leases import UNKNOWN
from headrace.storage.log.reading import LogSlice


async def test_the_publish_time_is_the_newest_timestamp_of_the_first_batch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.make_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    await produce(simulated_broker, "t", b"d", timestamp_ms=TIMESTAMP_MS + 5000)
    for offset, timestamp_ms in ((0, TIMESTAMP_MS + 2), (1, TIMESTAMP_MS + 2), (3, TIMESTAMP_MS + 5000)):
        piece = simulated_broker.partition("t").read(offset, 1_000_000)
        assert isinstance(piece, LogSlice)
        assert newest_publish_time_ms(piece) == newest_publish_time_ms(piece.bytes()) == timestamp_ms
        piece.release()


def test_without_a_timestamp_the_publish_time_is_unknown() -> None:
    assert newest_publish_time_ms(b"") == UNKNOWN
    assert newest_publish_time_ms(LogSlice(None, 0, 0, 0)) == UNKNOWN
    assert newest_publish_time_ms(bytes(batch(b"a", timestamp_ms=-1))) == UNKNOWN
