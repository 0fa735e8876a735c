"""Headrace: one write-ahead log that serves streams and queues.

    from headrace import AsyncClient, Client

The names for applications are imported on first use, so that a broker starts without them. `__init__.pyi` declares
their types.
"""

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncStream",
    "AsyncTransaction",
    "Backlog",
    "Client",
    "ClientClosed",
    "CommitInDoubt",
    "DeadLetter",
    "DeliveryTimedOut",
    "HeadraceError",
    "InvalidRequest",
    "LeaseLost",
    "Message",
    "MessageTooLarge",
    "Messages",
    "NewMessage",
    "NotEncodable",
    "PeekedMessage",
    "ProducerFenced",
    "PublishFailed",
    "Receipt",
    "Record",
    "Reject",
    "Reply",
    "RequestTimedOut",
    "Retry",
    "Stream",
    "Transaction",
    "Undecodable",
    "UnknownTopicOrPartition",
    "Unreachable",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("headrace.sdk"), name)
    globals()[name] = value
    return value
