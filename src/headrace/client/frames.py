"""Cuts the byte stream from a broker into frames.

Small frames are copied out of one reused buffer; a large one that has not all arrived gets memory of its own
and is received straight into it. Either way a frame's bytes are never written again, so record views into it
stay valid.
"""

from __future__ import annotations

from headrace.client.errors import MalformedAnswer
from headrace.runtime.network import Link

_BUFFER_SIZE = 128 * 1024
_FRAME_SIZE_MAX = 512 * 1024 * 1024


class FrameReader:
    """Reads one link. `receive` once per readiness; it returns the frames that this completed."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._buffer = bytearray(_BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    def receive(self) -> list[memoryview]:
        """The frames (without their length) that one read completed.

        Raises BlockingIOError when there is nothing to read, EOFError when the peer has closed.
        """
        if self._large is not None:
            return self._receive_large(self._large)
        count = self._link.receive_into(self._view[self._filled :])
        if count == 0:
            raise EOFError
        self._filled += count
        return self._cut()

    def _receive_large(self, frame: memoryview) -> list[memoryview]:
        count = self._link.receive_into(frame[self._large_filled :])
        if count == 0:
            raise EOFError
        self._large_filled += count
        if self._large_filled < len(frame):
            return []
        self._large = None
        return [frame]

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while self._filled - position >= 4:
            size = int.from_bytes(self._view[position : position + 4], "big", signed=True)
            if not 4 <= size <= _FRAME_SIZE_MAX:
                raise MalformedAnswer(f"{self._link.peer} announced a frame of {size} bytes; is this a Kafka listener?")
            end = position + 4 + size
            if end > self._filled:
                if size > _BUFFER_SIZE // 2:
                    self._start_large(position + 4, size)
                    position = self._filled
                break
            frames.append(memoryview(bytes(self._view[position + 4 : end])))
            position = end
        rest = self._filled - position
        if position and rest:
            self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest
        return frames

    def _start_large(self, position: int, size: int) -> None:
        self._large = memoryview(bytearray(size))
        self._large_filled = self._filled - position
        self._large[: self._large_filled] = self._view[position : self._filled]
