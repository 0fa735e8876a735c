"""The system interface `Entropy`: the only source of randomness of a broker, so that a simulation can replace it.

Modules that a broker does not need while it starts are imported at first use.
"""

from __future__ import annotations

import uuid
from typing import Protocol


class Entropy(Protocol):
    def uuid(self) -> uuid.UUID:
        """A random identifier (version 4)."""
        ...

    def token(self, size: int) -> str:
        """A secret of `size` random bytes, in URL-safe characters."""
        ...

    def uniform(self, low: float, high: float) -> float: ...

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high], both ends included."""
        ...


class SystemEntropy:
    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def token(self, size: int) -> str:
        import secrets

        return secrets.token_urlsafe(size)

    def uniform(self, low: float, high: float) -> float:
        from random import SystemRandom

        return SystemRandom().uniform(low, high)

    def integer(self, low: int, high: int) -> int:
        from random import SystemRandom

        return SystemRandom().randint(low, high)
