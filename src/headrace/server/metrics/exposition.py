"""Write the Prometheus text format: for each family its help, its type, and then all its samples.

Only families in the table of `families` can be written, which ensures that each has a help text and is documented.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.histogram import Histogram
from headrace.server.metrics.families import FAMILIES

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def format_labels(**labels: str | int) -> str:
    """Format the labels between the braces; the result can be shared by families with the same labels."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())


class Exposition:
    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._families

    def add(self, name: str, value: float, labels: str = "") -> None:
        self._lines(name).append(f"{name}{{{labels}}} {value}" if labels else f"{name} {value}")

    def add_histogram(self, name: str, histogram: Histogram, labels: str = "") -> None:
        lines = self._lines(name)
        before = f"{labels}," if labels else ""
        behind = f"{{{labels}}}" if labels else ""
        running = 0
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {running}')
        lines.append(f"{name}_sum{behind} {histogram.total}")
        lines.append(f"{name}_count{behind} {histogram.count}")

    def pieces(self) -> Iterator[bytes]:
        """Yield the text of one family at a time."""
        for lines in self._families.values():
            yield "\n".join([*lines, ""]).encode()

    def _lines(self, name: str) -> list[str]:
        lines = self._families.get(name)
        if lines is None:
            kind, means = FAMILIES[name]
            lines = self._families[name] = [f"# HELP {name} {means}", f"# TYPE {name} {kind}"]
        return lines
