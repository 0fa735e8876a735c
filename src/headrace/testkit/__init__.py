"""Simulated clock, disk, network and registry, and an embedded broker for tests of applications.

from headrace.testkit import EmbeddedBroker         a real broker in your process, for your tests
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testkit.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]


def __getattr__(name: str) -> object:
    # Simulations do not need the protocols of a broker, so import them only for the embedded broker.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.testkit.embedded import EmbeddedBroker

    return EmbeddedBroker
