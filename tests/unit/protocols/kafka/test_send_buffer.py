"""The outbox: whatever the link takes at a time, the same bytes arrive in order, and files are let go once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.kafka.send_buffer import SendBuffer
from headrace.runtime.disk import Buffer, File
from headrace.storage.log.reading import LogSlice
from headrace.testkit.disk import SimDisk, SimFile


class Drip:
    """A link that takes as many bytes as it is told, then blocks once."""

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


def send_all(outbox: SendBuffer, link: Drip) -> int:
    sent = 0
    while outbox:
        sent += outbox.send(link)  # type: ignore[arg-type]
    return sent


parts = st.lists(st.tuples(st.booleans(), st.binary(max_size=20)), max_size=12)


@given(parts, st.lists(st.integers(0, 9), max_size=40))
def test_memory_and_slices_arrive_in_order_however_the_link_takes_them(
    chunks: list[tuple[bool, bytes]], portions: list[int]
) -> None:
    file = make_file(b"".join(data for _, data in chunks))
    outbox, link, position = SendBuffer(), Drip(portions), 0
    for in_file, data in chunks:
        outbox.append_chunks([LogSlice(file, position, len(data), 0) if in_file and data else data])
        position += len(data)
    waiting = sum(len(data) for in_file, data in chunks if not in_file)
    assert outbox.memory_bytes == waiting
    expected = b"".join(data for _, data in chunks)
    assert send_all(outbox, link) == len(expected)
    assert bytes(link.taken) == expected
    assert outbox.memory_bytes == 0
    assert file._pins == 0


def test_memory_bytes_counts_what_is_left_after_a_partial_send() -> None:
    outbox = SendBuffer()
    outbox.append_chunks([b"0123456789", b"abcde"])
    assert outbox.send(Drip([7, 0])) == 7  # type: ignore[arg-type]
    assert outbox.memory_bytes == 8


def test_a_slice_costs_no_memory() -> None:
    outbox = SendBuffer()
    outbox.append_chunks([b"head", LogSlice(make_file(bytes(5000)), 0, 5000, 0)])
    assert outbox.memory_bytes == 4


def test_a_slice_is_released_exactly_once_whether_sent_or_dropped() -> None:
    file = make_file(b"0123456789")
    outbox = SendBuffer()
    outbox.append_chunks([LogSlice(file, 0, 4, 0), LogSlice(file, 4, 6, 0)])
    assert file._pins == 2
    outbox.send(Drip([4, 3, 0]))  # type: ignore[arg-type]
    assert file._pins == 1
    outbox.clear()
    assert file._pins == 0
    assert not outbox
    assert outbox.memory_bytes == 0
    outbox.clear()
    assert file._pins == 0


def test_the_kernel_is_told_that_more_follows_when_a_slice_does() -> None:
    file = make_file(b"0123456789" * 1000)
    outbox, link = SendBuffer(), Drip()
    outbox.append_chunks([b"head", b"er", LogSlice(file, 0, 10_000, 0), b"tail"])
    send_all(outbox, link)
    assert link.more == [True, False]


def test_a_few_bytes_of_a_log_leave_together_with_what_stands_before_them() -> None:
    file = make_file(b"0123456789")
    outbox, link = SendBuffer(), Drip()
    outbox.append_chunks([b"head", LogSlice(file, 2, 5, 0), b"tail"])
    send_all(outbox, link)
    assert link.more == [False]
    assert bytes(link.taken) == b"head23456tail"
    assert file._pins == 0
    assert outbox.memory_bytes == 0


def test_many_small_answers_leave_in_few_sends() -> None:
    outbox, link = SendBuffer(), Drip()
    outbox.append_chunks([b"%d" % (number % 10) for number in range(200)])
    send_all(outbox, link)
    assert len(link.more) == 4
    assert len(link.taken) == 200


def test_a_file_that_is_shorter_than_promised_ends_the_connection() -> None:
    outbox = SendBuffer()
    outbox.append_chunks([LogSlice(make_file(b"short"), 0, 10, 0)])
    with pytest.raises(ConnectionAbortedError):
        send_all(outbox, Drip())
    outbox.clear()


def test_nothing_is_empty_at_once() -> None:
    outbox = SendBuffer()
    outbox.append_chunks([b"", LogSlice(None, 0, 0, 0)])
    assert not outbox
