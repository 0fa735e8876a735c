"""The asynchronous client on Kafka's wire protocol, used by gateways, followers, the SDK, Spark and the CLI.

    async with connect("127.0.0.1:9092") as cluster:
        async with Producer(cluster) as producer:
            receipt = await producer.publish("orders", b"hello", key=b"c-42")
        async with Consumer(cluster, ["orders"], group=GroupRules("billing")) as consumer:
            async for record in consumer:
                ...

- One `Cluster` holds metadata and connections; producers, consumers and admin calls share it.
- Everything runs on one event loop, every wait has a deadline, and every error is a `HeadraceError` that tells whether
  a retry may help.
- Queues, requests, schedules and transactions are imported when they are first used.
"""

from typing import TYPE_CHECKING

from headrace.client.admin.group_admin import GroupAdmin, GroupView, PartitionLag
from headrace.client.admin.topic_admin import Config, NewTopic, TopicAdmin
from headrace.client.admin.transaction_admin import OpenTransaction, TransactionAdmin, TransactionView
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.connections.address import Address, parse_address, parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.connections.transport import Dialer, Transport
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.fetch.fetcher import FetchingRules
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import END, START, Commit, FoundOffset, commit, committed, find_offsets
from headrace.client.metadata import ClusterView, PartitionView, TopicPartition, TopicView
from headrace.client.produce.producer import Delivery, Producer, ProducerSettings, Receipt

if TYPE_CHECKING:
    from headrace.client.admin.subscription_admin import Position, SubscriptionAdmin
    from headrace.client.queues.dead_letters import DeadLetterQueue
    from headrace.client.queues.request_reply import Requests, Responder
    from headrace.client.queues.schedule import Schedule, When
    from headrace.client.queues.subscription import LeasingRules, Subscription
    from headrace.client.transactions.transactional_producer import TransactionalProducer, TransactionSettings

_LATER = {
    "DeadLetterQueue": "queues.dead_letters",
    "LeasingRules": "queues.subscription",
    "Position": "admin.subscription_admin",
    "Requests": "queues.request_reply",
    "Responder": "queues.request_reply",
    "Schedule": "queues.schedule",
    "Subscription": "queues.subscription",
    "SubscriptionAdmin": "admin.subscription_admin",
    "TransactionSettings": "transactions.transactional_producer",
    "TransactionalProducer": "transactions.transactional_producer",
    "When": "queues.schedule",
}

__all__ = [
    "END",
    "START",
    "Address",
    "ClientSettings",
    "Cluster",
    "ClusterView",
    "Commit",
    "Config",
    "ConsumedRecord",
    "Consumer",
    "ConsumerSettings",
    "DeadLetterQueue",
    "Delivery",
    "Dialer",
    "FetchingRules",
    "FoundOffset",
    "GroupAdmin",
    "GroupRules",
    "GroupView",
    "LeasingRules",
    "NewTopic",
    "OpenTransaction",
    "PartitionLag",
    "PartitionView",
    "Position",
    "Producer",
    "ProducerSettings",
    "Receipt",
    "Requests",
    "Responder",
    "Schedule",
    "Subscription",
    "SubscriptionAdmin",
    "TcpDialer",
    "TopicAdmin",
    "TopicPartition",
    "TopicView",
    "TransactionAdmin",
    "TransactionSettings",
    "TransactionView",
    "TransactionalProducer",
    "Transport",
    "When",
    "commit",
    "committed",
    "connect",
    "find_offsets",
    "parse_address",
    "parse_addresses",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found
