"""The send buffer: bytes are sent in order by partial sends, and files are released once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.kafka.send_buffer import SendBuffer
from headrace.runtime.disk import Buffer, File
from headrace.storage.log.reading import LogSlice
from headrace.testkit.disk import SimDisk, SimFile


class PartialStream:
    """A stream that accepts the given numbers of bytes, then blocks once."""

    peer = "peer:1"

    def __init__(self, portions: Sequence[int] = ()) -> None:
        self.taken = bytearray()
        self.more: list[bool] = []
        self._portions = list(portions)

    def send(self, chunks: Sequence[Buffer], more: bool) -> int:
        self.more.append(more)
        return self._take(b"".join(chunks))

    def send_file(self, file: File, position: int, count: int) -> int:
        return self._take(file.pread(count, position))

    def _take(self, data: bytes) -> int:
        portion = len(data)
        if self._portions:
            portion = self._portions.pop(0)
            if portion == 0:
                raise BlockingIOError
        self.taken += data[:portion]
        return min(portion, len(data))


def make_file(content: bytes) -> SimFile:
    disk = SimDisk(1)
    disk.make_directory("/data")
    file = disk.open("/data/log", create=True)
    file.append([content])
    return file


def send_all(send_buffer: SendBuffer, stream: PartialStream) -> int:
    sent = 0
    while send_buffer:
        sent += send_buffer.send(stream)  # type: ignore[arg-type]
    return sent


parts = st.lists(st.tuples(st.booleans(), st.binary(max_size=20)), max_size=12)


@given(parts, st.lists(st.integers(0, 9), max_size=40))
def test_memory_and_slices_are_sent_in_order_by_partial_sends(
    chunks: list[tuple[bool, bytes]], portions: list[int]
) -> None:
    file = make_file(b"".join(data for _, data in chunks))
    send_buffer, link, position = SendBuffer(), PartialStream(portions), 0
    for in_file, data in chunks:
        send_buffer.append_chunks([LogSlice(file, position, len(data), 0) if in_file and data else data])
        position += len(data)
    waiting = sum(len(data) for in_file, data in chunks if not in_file)
    assert send_buffer.memory_bytes == waiting
    expected = b"".join(data for _, data in chunks)
    assert send_all(send_buffer, link) == len(expected)
    assert bytes(link.taken) == expected
    assert send_buffer.memory_bytes == 0
    assert file._pins == 0


def test_memory_bytes_excludes_sent_bytes() -> None:
    send_buffer = SendBuffer()
    send_buffer.append_chunks([b"0123456789", b"abcde"])
    assert send_buffer.send(PartialStream([7, 0])) == 7  # type: ignore[arg-type]
    assert send_buffer.memory_bytes == 8


def test_a_slice_uses_no_memory() -> None:
    send_buffer = SendBuffer()
    send_buffer.append_chunks([b"head", LogSlice(make_file(bytes(5000)), 0, 5000, 0)])
    assert send_buffer.memory_bytes == 4


def test_a_slice_is_released_exactly_once_whether_sent_or_dropped() -> None:
    file = make_file(b"0123456789")
    send_buffer = SendBuffer()
    send_buffer.append_chunks([LogSlice(file, 0, 4, 0), LogSlice(file, 4, 6, 0)])
    assert file._pins == 2
    send_buffer.send(PartialStream([4, 3, 0]))  # type: ignore[arg-type]
    assert file._pins == 1
    send_buffer.clear()
    assert file._pins == 0
    assert not send_buffer
    assert send_buffer.memory_bytes == 0
    send_buffer.clear()
    assert file._pins == 0


def test_a_send_before_a_slice_has_the_more_flag() -> None:
    file = make_file(b"0123456789" * 1000)
    send_buffer, link = SendBuffer(), PartialStream()
    send_buffer.append_chunks([b"head", b"er", LogSlice(file, 0, 10_000, 0), b"tail"])
    send_all(send_buffer, link)
    assert link.more == [True, False]


def test_a_small_slice_is_sent_together_with_the_preceding_bytes() -> None:
    file = make_file(b"0123456789")
    send_buffer, link = SendBuffer(), PartialStream()
    send_buffer.append_chunks([b"head", LogSlice(file, 2, 5, 0), b"tail"])
    send_all(send_buffer, link)
    assert link.more == [False]
    assert bytes(link.taken) == b"head23456tail"
    assert file._pins == 0
    assert send_buffer.memory_bytes == 0


def test_many_small_responses_need_few_sends() -> None:
    send_buffer, link = SendBuffer(), PartialStream()
    send_buffer.append_chunks([b"%d" % (number % 10) for number in range(200)])
    send_all(send_buffer, link)
    assert len(link.more) == 4
    assert len(link.taken) == 200


def test_a_file_shorter_than_its_slice_closes_the_connection() -> None:
    send_buffer = SendBuffer()
    send_buffer.append_chunks([LogSlice(make_file(b"short"), 0, 10, 0)])
    with pytest.raises(ConnectionAbortedError):
        send_all(send_buffer, PartialStream())
    send_buffer.clear()


def test_an_empty_buffer_sends_nothing() -> None:
    send_buffer = SendBuffer()
    send_buffer.append_chunks([b"", LogSlice(None, 0, 0, 0)])
    assert not send_buffer
