"""Frames: splitting of input does not change the requests, and memory grows with the received bytes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.protocols.kafka.byte_budget import ByteBudget
from headrace.protocols.kafka.frames import RequestFrameReader

SCRATCH_BYTES = 4096
REQUEST_BYTES_MAX = 1 << 20


class Receiver:
    """A frame reader that collects its frames."""

    def __init__(self, budget_bytes: int = 1 << 30, request_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.budget = ByteBudget(budget_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.reader = RequestFrameReader(self.scratch, self.budget, request_bytes_max)
        self.frames: list[bytes] = []
        self.stops = False  # after every frame

    def serve(self, frame: memoryview) -> bool:
        assert not frame.readonly, "the log updates a batch in place"
        self.frames.append(bytes(frame))
        return not self.stops

    def feed(self, data: bytes) -> None:
        """Receive like a connection: as much as there is room for, and resume after a stop."""
        view = memoryview(data)
        while view:
            room = self.reader.room()
            assert room is not None
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            before = len(self.frames)
            goes_on = self.reader.received(count, self.serve)
            while not goes_on:
                assert len(self.frames) == before + 1, "serving must stop"
                before = len(self.frames)
                goes_on = self.reader.resume(self.serve)


def framed(payloads: Iterable[bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


payload_lists = st.lists(st.binary(min_size=8, max_size=64), max_size=6)


@given(payload_lists, st.data())
def test_frames_split_anywhere_give_the_same_requests(payloads: list[bytes], data: st.DataObject) -> None:
    stream = framed(payloads)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    receiver = Receiver()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        receiver.feed(stream[start:end])
    assert receiver.frames == payloads
    assert receiver.budget.taken == 0
    assert not receiver.reader.unfinished


def test_frames_received_byte_by_byte_give_the_same_requests() -> None:
    payloads = [b"12345678", b"x" * 300, b"y" * 8]
    receiver = Receiver()
    for byte in framed(payloads):
        receiver.feed(bytes([byte]))
    assert receiver.frames == payloads


def test_every_split_of_two_frames_gives_the_same_requests() -> None:
    payloads = [b"a" * 20, b"b" * 33]
    stream = framed(payloads)
    for cut in range(len(stream) + 1):
        receiver = Receiver()
        receiver.feed(stream[:cut])
        receiver.feed(stream[cut:])
        assert receiver.frames == payloads


@pytest.mark.parametrize("size", [SCRATCH_BYTES - 4, SCRATCH_BYTES, 70_000, 300_000, REQUEST_BYTES_MAX])
def test_a_frame_larger_than_the_scratch_buffer_is_assembled(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    receiver = Receiver()
    receiver.feed(framed([payload[:size], b"follows!"]))
    assert receiver.frames == [payload[:size], b"follows!"]
    assert receiver.budget.taken == 0


def test_a_huge_length_without_its_bytes_allocates_little() -> None:
    receiver = Receiver(request_bytes_max=100 << 20)
    receiver.feed((100 << 20).to_bytes(4, "big") + b"only these")
    assert receiver.reader.unfinished
    assert receiver.budget.taken <= 1 << 16


def test_the_buffer_grows_with_the_received_bytes_not_the_length() -> None:
    receiver = Receiver(request_bytes_max=100 << 20)
    receiver.feed((100 << 20).to_bytes(4, "big"))
    for arrived in (1 << 16, 1 << 18, 1 << 20):
        receiver.feed(bytes(arrived))
        assert receiver.budget.taken <= 8 * arrived


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, REQUEST_BYTES_MAX + 1, 2**31 - 1])
def test_an_invalid_length_is_malformed(size: int) -> None:
    receiver = Receiver()
    with pytest.raises(MalformedFrame, match=f"invalid frame length {size}"):
        receiver.feed(size.to_bytes(4, "big", signed=True) + b"01234567")
    assert receiver.frames == []


def test_the_smallest_and_the_largest_request_are_accepted() -> None:
    receiver = Receiver(request_bytes_max=100)
    receiver.feed(framed([b"8 bytes!", b"x" * 100]))
    assert [len(frame) for frame in receiver.frames] == [8, 100]


def test_frames_before_a_malformed_one_are_served() -> None:
    receiver = Receiver()
    with pytest.raises(MalformedFrame):
        receiver.feed(framed([b"good one"]) + b"\xff" * 8)
    assert receiver.frames == [b"good one"]


@given(payload_lists, st.integers(0, 200))
def test_serving_stops_on_request_and_resumes_there(payloads: list[bytes], cut: int) -> None:
    stream = framed(payloads)
    receiver = Receiver()
    receiver.stops = True
    receiver.feed(stream[:cut])
    receiver.feed(stream[cut:])
    assert receiver.frames == payloads


def test_a_stop_after_a_large_frame_leaves_the_next_ones_in_the_socket() -> None:
    receiver = Receiver()
    receiver.feed(framed([b"x" * 10_000])[:-1])
    room = receiver.reader.room()
    assert room is not None
    assert len(room) == 1


def test_the_buffer_is_returned_when_its_frame_is_served_or_the_connection_closes() -> None:
    receiver = Receiver()
    receiver.feed(framed([b"x" * 10_000])[:5000])
    assert receiver.budget.taken > 0
    receiver.reader.release()
    assert receiver.budget.taken == 0
    assert not receiver.reader.unfinished
    receiver.reader.release()
    assert receiver.budget.taken == 0


def test_the_buffer_is_returned_when_its_request_fails() -> None:
    receiver = Receiver()
    stream = framed([b"x" * 10_000])
    receiver.feed(stream[:5000])

    def fail(_: memoryview) -> bool:
        raise MalformedFrame("no request")

    room = receiver.reader.room()
    assert room is not None
    with pytest.raises(MalformedFrame):
        receiver.reader.received(len(room), fail)
    assert receiver.budget.taken == 0


def test_a_frame_above_the_budget_waits_for_a_returned_buffer() -> None:
    receiver = Receiver(budget_bytes=200_000)
    first = receiver.budget.take_buffer(100_000)
    other = object()
    assert receiver.budget.has_room(200_000, other)
    receiver.feed((1 << 20).to_bytes(4, "big") + bytes(1000))
    while (room := receiver.reader.room()) is not None:
        receiver.reader.received(len(room), receiver.serve)
    called: list[bool] = []
    receiver.budget.on_release(lambda: called.append(True))
    receiver.budget.finish(other, first)
    assert called
    assert receiver.reader.room() is not None


def test_frames_that_share_an_exhausted_budget_do_not_deadlock() -> None:
    budget = ByteBudget(1 << 20)
    receivers = [Receiver() for _ in range(3)]
    for receiver in receivers:
        receiver.budget = budget
        receiver.reader = RequestFrameReader(receiver.scratch, budget, REQUEST_BYTES_MAX)
        receiver.feed((1 << 20).to_bytes(4, "big") + b"begin")
    for _ in range(1000):
        for receiver in receivers:
            room = receiver.reader.room() if not receiver.frames else None
            if room is not None:
                receiver.reader.received(len(room), receiver.serve)
    assert [len(receiver.frames) for receiver in receivers] == [1, 1, 1]
    assert budget.taken == 0


def test_a_frame_may_be_served_while_the_previous_one_is_in_use() -> None:
    """The scratch buffer is overwritten, so a handler that waits must have copied its data."""
    receiver = Receiver()
    kept: list[memoryview] = []

    def keep(frame: memoryview) -> bool:
        kept.append(frame)
        return True

    data = framed([b"first 12", b"second12"])
    receiver.scratch[: len(data)] = data
    receiver.reader.received(len(data), keep)
    assert [bytes(frame) for frame in kept] == [b"first 12", b"second12"]
    assert kept[0].obj is receiver.scratch.obj, "small requests are not copied"
