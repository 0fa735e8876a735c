"""The public API for applications: `Client`, `AsyncClient`, their messages, records and errors.

All names are also exported by `headrace`, which imports them on first use: `from headrace import Client`.
"""

from headrace.client.errors import CommitInDoubt, DeliveryTimedOut, Unreachable
from headrace.client.produce.producer import Receipt
from headrace.client.queues.redrive import DeadLetter
from headrace.model.errors import (
    HeadraceError,
    InvalidRequest,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.sdk.async_client import AsyncClient
from headrace.sdk.client import Client
from headrace.sdk.errors import ClientClosed, LeaseLost, NotEncodable, PublishFailed, Reject, Retry
from headrace.sdk.incoming import Reply, Undecodable
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.outgoing import NewMessage
from headrace.sdk.streams import AsyncStream, Record
from headrace.sdk.subscription_state import Backlog, PeekedMessage
from headrace.sdk.sync_messages import Message, Messages, Stream, Transaction
from headrace.sdk.transaction import AsyncTransaction

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
