"""Simulated clock, disk and network; shipped so that users can test too.

from headrace.testkit import EmbeddedBroker         a real broker in your process, for your tests
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testkit.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]


def __getattr__(name: str) -> object:
    # The simulations do without a broker's doors, and whoever imports one of them need not wait for these.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.testkit.embedded import EmbeddedBroker

    return EmbeddedBroker
