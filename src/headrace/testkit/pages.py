"""What a simulated file holds: the page cache, what is surely on the platter, and the pieces in between.

A write goes to the page cache and leaves one pending piece per page. Until the file is synced, the kernel
may write a page back at any time or never, so after a power cut each page shows some prefix of its pieces,
whatever the other pages show; and the write that was under way when the power went is torn between two such
states, at a 512-byte sector. The size is on its own: it may lag behind the data or run ahead of it (then
zeros show).
"""

from __future__ import annotations

from random import Random

PAGE = 4096
SECTOR = 512
TEAR_CHANCE = 0.25


class FileNode:
    """One file's bytes, without a name."""

    def __init__(self) -> None:
        self.content = bytearray()  # what a reader sees
        self.warm = True  # in the page cache
        self.moves = 0  # renames and removals
        self.rotten: set[int] = set()  # positions of flipped bits that nobody has overwritten or cut off
        self._durable = bytearray()
        self._pieces: dict[int, list[tuple[int, bytes]]] = {}  # page -> (offset in page, bytes), in order
        self._sizes: list[int] = []  # the sizes since the last sync, in order
        self._abandoned: set[int] = set()  # pages that a failed sync marked clean

    @property
    def dirty(self) -> bool:
        return bool(self._pieces or self._sizes)

    def write(self, data: bytes, position: int) -> None:
        if position + len(data) > len(self.content):
            self._grow(position + len(data))
        self.content[position : position + len(data)] = data
        if self.rotten:
            self.rotten.difference_update(range(position, position + len(data)))
        self._note(data, position)
        self._note_size()

    def truncate(self, size: int) -> None:
        if size < len(self.content):
            del self.content[size:]
            self._forget_rot_behind(size)
            self._note(bytes(-size % PAGE), size)  # the rest of the last page; others just leave the file
        else:
            self._grow(size)
        self._note_size()

    def sync(self) -> None:
        """All is durable now, but for the pages that an earlier failed sync has abandoned."""
        size = len(self.content)
        del self._durable[size:]
        self._durable.extend(bytes(size - len(self._durable)))  # never negative: it was cut just before
        for page in [page for page in self._pieces if page not in self._abandoned]:
            start = page * PAGE
            self._durable[start : start + PAGE] = self.content[start : start + PAGE]
            del self._pieces[page]
        self._sizes.clear()

    def fail_sync(self) -> None:
        """The kernel could not write: it says so once, and takes the pages for clean from then on."""
        self._abandoned.update(self._pieces)

    def lose_power(self, random: Random, keep_chance: float) -> None:
        """Become what the platter shows after a power cut."""
        survived = bytearray(self._durable).ljust(max([0, *self._sizes]), b"\0")
        for page, pieces in sorted(self._pieces.items()):
            start = page * PAGE
            before = survived[start : start + PAGE]
            after = _page_after_power_cut(before, pieces, random, keep_chance)
            survived[start : start + PAGE] = after[: len(before)]
        del survived[self._size_after_power_cut(random, keep_chance) :]
        self.content = survived
        self._forget_rot_behind(min(len(self._durable), len(survived)))  # what was not durable has rotted in memory
        self.warm = False
        self._durable = bytearray(survived)
        self._pieces.clear()
        self._sizes.clear()
        self._abandoned.clear()

    def flip_bit(self, position: int, bit: int) -> None:
        """Rot: the platter's byte and the cached one alike."""
        for data in (self.content, self._durable):
            if position < len(data):
                data[position] ^= 1 << bit
        self.rotten.add(position)

    def _forget_rot_behind(self, size: int) -> None:
        self.rotten = {position for position in self.rotten if position < size}

    def _grow(self, size: int) -> None:
        old_pages, pages = -(-len(self.content) // PAGE), -(-size // PAGE)
        self.content.extend(bytes(size - len(self.content)))
        for page in range(old_pages, pages):
            if page in self._pieces or page * PAGE < len(self._durable):
                self._note(bytes(PAGE), page * PAGE)  # it was cut off before: it comes back empty

    def _note(self, data: bytes, position: int) -> None:
        taken = 0
        while taken < len(data):
            page, offset = divmod(position + taken, PAGE)
            piece = data[taken : taken + PAGE - offset]
            self._pieces.setdefault(page, []).append((offset, piece))
            self._abandoned.discard(page)  # dirty again as a whole
            taken += len(piece)

    def _note_size(self) -> None:
        known = self._sizes[-1] if self._sizes else len(self._durable)
        if len(self.content) != known:
            self._sizes.append(len(self.content))

    def _size_after_power_cut(self, random: Random, keep_chance: float) -> int:
        sizes = [len(self._durable), *self._sizes]
        if random.random() < keep_chance:
            return sizes[-1]
        step = random.randrange(len(sizes))
        size = sizes[step]
        if step + 1 < len(sizes) and sizes[step + 1] > size and random.random() < 0.5:
            return random.randint(size, sizes[step + 1])  # a long write gets its size in steps
        return size


def _page_after_power_cut(
    durable: bytes | bytearray, pieces: list[tuple[int, bytes]], random: Random, keep_chance: float
) -> bytes:
    kept = len(pieces) if random.random() < keep_chance else random.randint(0, len(pieces) - 1)
    newer = _page_after(durable, pieces[:kept])
    if kept == 0 or random.random() >= TEAR_CHANCE:
        return newer
    older = _page_after(durable, pieces[: random.randint(0, kept - 1)])
    torn_at = random.randint(0, PAGE // SECTOR) * SECTOR
    return newer[:torn_at] + older[torn_at:]


def _page_after(durable: bytes | bytearray, pieces: list[tuple[int, bytes]]) -> bytes:
    page = bytearray(durable).ljust(PAGE, b"\0")
    for offset, piece in pieces:
        page[offset : offset + len(piece)] = piece
    return bytes(page)
