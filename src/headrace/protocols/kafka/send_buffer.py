"""The send queue of a connection: bytes in memory, and slices of log files that are sent without a copy in Python.

Invariant: `memory_bytes` is the total size of the queued bytes-like chunks. File slices use no memory regardless of
their size, so a client that requests 50 MB and never reads them costs almost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from headrace.runtime.network import ByteStream
from headrace.storage.log.reading import LogSlice

_COPIED_BYTES_MAX = 8192
_CHUNKS_MAX = 64  # per sendmsg; far below the kernel's limit of 1,024
_BYTES_PER_SEND_MAX = 1 << 20  # a socket may accept many megabytes at once; yield to other connections before that


class SendBuffer:
    __slots__ = ("_chunks", "memory_bytes")

    def __init__(self) -> None:
        self._chunks: deque[Any] = deque()
        self.memory_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def append_chunks(self, chunks: Iterable[Any]) -> None:
        for chunk in chunks:
            if type(chunk) is not LogSlice:
                self.memory_bytes += len(chunk)
            if len(chunk):
                self._chunks.append(chunk)

    def send(self, stream: ByteStream) -> int:
        """Send as much as the stream accepts in this turn of the event loop; return the number of bytes. Everything
        is sent if the buffer is empty afterwards."""
        chunks = self._chunks
        sent = 0
        while chunks and sent < _BYTES_PER_SEND_MAX:
            head = chunks[0]
            try:
                taken = self._send_file_slice(stream, head) if type(head) is LogSlice else self._send_memory(stream)
            except BlockingIOError:
                return sent
            sent += taken
        return sent

    def clear(self) -> None:
        release(self._chunks)
        self._chunks.clear()
        self.memory_bytes = 0

    def _send_file_slice(self, stream: ByteStream, part: LogSlice) -> int:
        taken = stream.send_file(part.file, part.position, min(part.size, _BYTES_PER_SEND_MAX))
        if taken == 0:
            raise ConnectionAbortedError("the log file is shorter than the slice to send")
        part.position += taken
        part.size -= taken
        if not part.size:
            part.release()
            self._chunks.popleft()
        return taken

    def _copy(self, index: int, part: LogSlice) -> bytes:
        """Copy a small slice, so that it is sent together with the preceding bytes instead of in a separate call."""
        data = part.bytes()
        if len(data) != part.size:
            raise ConnectionAbortedError("the log file is shorter than the slice to send")
        part.release()
        self._chunks[index] = data
        self.memory_bytes += len(data)
        return data

    def _send_memory(self, stream: ByteStream) -> int:
        chunks = self._chunks
        first = chunks[0]
        if len(chunks) == 1:
            taken = stream.send((first,), False)
        else:
            gathered: list[Any] = []
            more = False
            for index, chunk in enumerate(chunks):
                if len(gathered) == _CHUNKS_MAX or (type(chunk) is LogSlice and chunk.size > _COPIED_BYTES_MAX):
                    more = True
                    break
                gathered.append(self._copy(index, chunk) if type(chunk) is LogSlice else chunk)
            taken = stream.send(gathered, more)
        self.memory_bytes -= taken
        left = taken
        while left:
            size = len(chunks[0])
            if left < size:
                chunks[0] = memoryview(chunks[0])[left:]
                break
            chunks.popleft()
            left -= size
        return taken


def release(chunks: Iterable[Any]) -> None:
    """Release the files of chunks that will not be sent."""
    for chunk in chunks:
        if type(chunk) is LogSlice:
            chunk.release()
