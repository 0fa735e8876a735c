"""Bits flip on the disk of one replica while its broker is down (I22).

- No broker sends a flipped bit. Recovery, a read or the scrub detects damage of a log, in any file and byte, and the
  log is quarantined. After a restart it is replicated again from the other replicas.
- No acknowledged record is lost meanwhile. Damage of an index or a checkpoint only costs time.
- The leader epoch in the header of a batch (bytes 12 to 15) is not damaged: Kafka's format excludes it from the
  checksum, so no read can detect it.
"""

from __future__ import annotations

from tests.simulation.features.feature import Fault
from tests.simulation.features.storage_faults import WEIGHT, DamagingFeature, Victim

from headrace.testkit.broker import SimBroker
from headrace.testkit.disk import SimDisk
from headrace.wire.batches.batch import parse_header

DERIVED = (".index", ".timeindex", ".checkpoint")
DERIVED_CHANCE = 0.15
LEADER_EPOCH = range(12, 16)


class BitFlips(DamagingFeature):
    topic = "rotting"
    may_replace_disk = False  # the other replica may have undetected damage

    def faults(self) -> list[Fault]:
        return [self.one_at_a_time(self._flip_bit)] * WEIGHT

    async def _flip_bit(self) -> None:
        victim = self.choose_victim()
        if victim is None:
            return
        broker, log = victim.broker, victim.partition.log
        limits = flushed_sizes(victim)
        if await self.shut_down(broker):
            if self.random.random() < DERIVED_CHANCE:
                self._flip_derived(broker, log.folder)
            else:
                self._flip_stored(broker, limits)
        await self.start_again(broker)

    def _flip_stored(self, broker: SimBroker, limits: dict[str, int]) -> None:
        """Flip a bit of flushed data, unless the file has been deleted or truncated meanwhile."""
        disk = broker.host.disk
        paths = [path for path, size in limits.items() if disk.exists(path) and disk.open(path).size() >= size]
        if paths:
            path = self.random.choice(paths)
            position = self.random.choice(checksummed(disk, path, limits[path]))
            broker.flip_bit(path, position, self.random.randrange(8))

    def _flip_derived(self, broker: SimBroker, folder: str) -> None:
        disk = broker.host.disk
        names = disk.list(folder) if disk.exists(folder) else []
        sizes = {f"{folder}/{name}": disk.open(f"{folder}/{name}").size() for name in names if name.endswith(DERIVED)}
        paths = [path for path, size in sizes.items() if size]
        if paths:
            path = self.random.choice(paths)
            disk.flip_bit(path, self.random.randrange(sizes[path]), self.random.randrange(8))


def checksummed(disk: SimDisk, path: str, size: int) -> list[int]:
    """Return the positions below `size` whose damage can be detected."""
    content, at, found = disk.read(path), 0, list[int]()
    while at < size:
        batch_size = parse_header(content, at).size_bytes
        found += [at + byte for byte in range(batch_size) if byte not in LEADER_EPOCH]
        at += batch_size
    return found


def flushed_sizes(victim: Victim) -> dict[str, int]:
    """Return the number of flushed bytes of each segment of a log."""
    log = victim.partition.log
    sizes = {}
    for segment in log.segments:
        is_last = segment is log._flushed_segment
        size = log._flushed_position if is_last else segment.size
        if size:
            sizes[segment.path] = size
        if is_last:
            break
    return sizes
