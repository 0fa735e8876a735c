"""The history of sent, acknowledged and read values, and the anomalies in it.

Values are unique numbers that increase per partition in the order of sending. The rules are those of Jepsen's Kafka
workload: I2 (acknowledged means readable), I3 (one value per offset), I9 (order), I14 (no duplicates).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class History:
    """One run against one topic with a single idempotent producer."""

    sent: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """partition -> value -> acknowledged offset"""
    refused: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """values without a delivery report, which may or may not have been written"""
    read: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """partition -> (offset, value) in the order of reading, from one reader without seeks"""

    def anomalies(self) -> list[str]:
        """Return a sentence for each anomaly."""
        found: list[str] = []
        for partition in sorted(self.sent.keys() | self.read.keys()):
            found += [f"partition {partition}: {one}" for one in self._anomalies_of(partition)]
        return found

    def acknowledged_count(self) -> int:
        return sum(len(values) for values in self.acknowledged.values())

    def _anomalies_of(self, partition: int) -> list[str]:
        found: list[str] = []
        place: dict[int, int] = {}
        last_offset, last_value = -1, -1
        for offset, value in self.read[partition]:
            if value not in self.sent[partition]:
                found.append(f"value {value} at offset {offset} was never sent")
            if value in place:
                found.append(f"value {value} stands at offsets {place[value]} and {offset}")
            if offset <= last_offset:
                found.append(f"offset {offset} was read after {last_offset}")
            if value < last_value:
                found.append(f"value {value} stands behind {last_value}, but was sent before it")
            place[value] = offset
            last_offset, last_value = offset, value
        for value, offset in self.acknowledged[partition].items():
            if value not in place:
                found.append(f"value {value} was acknowledged at offset {offset} and is lost")
            elif place[value] != offset:
                found.append(f"value {value} was acknowledged at offset {offset} but stands at {place[value]}")
        return found
