"""An `Entropy` that draws everything from a seed."""

from __future__ import annotations

import base64
import uuid
from random import Random


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def token(self, size: int) -> str:
        return base64.urlsafe_b64encode(self._random.randbytes(size)).rstrip(b"=").decode()

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)
