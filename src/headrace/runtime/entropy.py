"""The entropy door: how chance comes in. A broker draws everything random here, so a seed can replace it."""

from __future__ import annotations

import random
import secrets
import uuid
from typing import Protocol


class Entropy(Protocol):
    def uuid(self) -> uuid.UUID:
        """A random identifier (version 4)."""
        ...

    def token(self, size: int) -> str:
        """A secret of `size` random bytes, spelled with URL-safe characters."""
        ...

    def uniform(self, low: float, high: float) -> float: ...

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high], both ends included."""
        ...


class SystemEntropy:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def token(self, size: int) -> str:
        return secrets.token_urlsafe(size)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)
