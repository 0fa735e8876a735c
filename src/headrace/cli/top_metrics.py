"""A broker's own numbers, read from its `/metrics`: what the wire protocol does not tell."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_SECONDS = 2.0

Labels = Mapping[str, str]


class Samples:
    """By name, in the order of the page."""

    def __init__(self, text: str) -> None:
        self._by_name: dict[str, list[tuple[Labels, float]]] = {}
        for line in text.splitlines():
            match = _SAMPLE.fullmatch(line)
            if match is not None:
                labels = {name: _unescaped(value) for name, value in _LABEL.findall(match[2] or "")}
                self._by_name.setdefault(match[1], []).append((labels, float(match[3])))

    def all(self, name: str) -> Iterator[tuple[Labels, float]]:
        return iter(self._by_name.get(name, ()))

    def value(self, name: str) -> float | None:
        """Of a family without labels, or the sum of one with."""
        found = self._by_name.get(name)
        return None if found is None else sum(value for _, value in found)


async def scrape(address: str) -> Samples:
    """Raises OSError if there is nobody, ValueError if what is there is no page of metrics."""
    return Samples(await asyncio.to_thread(_get, f"http://{address}/metrics"))


def _get(url: str) -> str:
    from urllib.error import URLError  # imported only if metrics are requested
    from urllib.request import Request, urlopen

    token = os.environ.get("HEADRACE_TOKEN")
    request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            return str(answer.read().decode())
    except URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None


def _unescaped(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], value)
