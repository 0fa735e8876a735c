"""Change a byte of a log of a stopped broker, and check how the broker handles it.

- Only flushed data is damaged: a byte in the first half of a log with many batches. Recovery may truncate a tail that
  was not flushed, which would be no violation.
- The leader epoch in the header of a batch is not changed: Kafka's format excludes it from the checksum, because every
  leader writes its own.
- The broker must detect the damage and quarantine the log; `check` reports damage that is still there or disappeared in
  another way.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from tests.chaos.nodes import BrokerNode
from tests.integration.process import PATIENCE_SECONDS, wait_until

from headrace.storage.store.scrub import IDLE_SECONDS

BATCHES_MIN = 10
SCRUB_SECONDS = 2 * IDLE_SECONDS + PATIENCE_SECONDS
"""Long enough for a second pass of the scrubber, which pauses between two."""
_FRAME = Struct(">qi")
_LEADER_EPOCH = range(12, 16)


@dataclass(slots=True)
class Damage:
    broker: BrokerNode
    log: Path
    segment: Path
    position: int
    value: int
    """the value of the damaged byte"""
    logged_before: int
    """the size of the broker's log when the damage was done"""
    is_moved: bool = False
    """the partition was reassigned before the damage was detected; it may be back by now, with a new log"""

    def __str__(self) -> str:
        return f"byte {self.position} of {self.segment}"

    @property
    def is_there(self) -> bool:
        try:
            with self.segment.open("rb") as file:
                file.seek(self.position)
                return file.read(1) == bytes([self.value])
        except FileNotFoundError:
            return False

    @property
    def is_quarantined(self) -> bool:
        return bool(self._quarantined_by())

    @property
    def is_found_while_running(self) -> bool:
        """Return whether the broker found the damage at run time. It then replicates the log again only at its next
        start."""
        return self._quarantined_by()[-1:] == ["headrace.storage.log.log"]

    def check(self) -> list[str]:
        if self.is_there:
            return [f"damage never repaired: {self}"]
        return (
            [] if self.is_quarantined or self.is_moved else [f"damage cut off or overwritten, not quarantined: {self}"]
        )

    def _quarantined_by(self) -> list[str]:
        """Return the logger of each line that reports the quarantine."""
        path = re.compile(rf"{re.escape(str(self.log))}(?=[\s:,]|$)")
        with self.broker.log_path.open(errors="replace") as file:
            file.seek(self.logged_before)
            lines = [line for line in file if "quarantined" in line and path.search(line)]
        return [line.split()[3] for line in lines]


def damage_one(broker: BrokerNode, logs: Sequence[Path], chance: random.Random) -> Damage | None:
    """Damage one of these logs of a stopped broker; return None if all are too short."""
    for log in chance.sample(logs, len(logs)):
        batches = list(_batches(log))
        if len(batches) < BATCHES_MIN:
            continue
        segment, position, size = chance.choice(batches[: len(batches) // 2])
        position += chance.choice([at for at in range(size) if at not in _LEADER_EPOCH])
        with segment.open("r+b") as file:
            file.seek(position)
            value = file.read(1)[0] ^ 1 << chance.randrange(8)
            file.seek(position)
            file.write(bytes([value]))
        return Damage(broker, log, segment, position, value, broker.log_path.stat().st_size)
    return None


def repair(damage: Damage) -> None:
    """Start the broker, and restart it as an operator does if the damage was found at run time."""
    broker = damage.broker
    broker.launch()
    broker.wait_ready()
    wait_until(
        lambda: damage.is_quarantined or not damage.log.exists(),
        f"{broker.name} finds the damage: {damage}",
        SCRUB_SECONDS,
    )
    damage.is_moved = not damage.is_quarantined
    if damage.is_there and damage.is_found_while_running:
        broker.terminate()
        broker.launch()
        broker.wait_ready()
    wait_until(lambda: not damage.is_there, f"{broker.name} replaces the damaged log: {damage}")


def check(damages: Iterable[Damage]) -> list[str]:
    return [sentence for damage in damages for sentence in damage.check()]


def _batches(log: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the file, position and size of each complete batch."""
    for path in sorted(log.glob("*.log")):
        content, position = path.read_bytes(), 0
        while position + _FRAME.size <= len(content):
            _, length = _FRAME.unpack_from(content, position)
            size = _FRAME.size + length
            if length <= 0 or position + size > len(content):
                break
            yield path, position, size
            position += size
