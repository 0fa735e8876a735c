"""The async client on Kafka's wire protocol: what gateways, followers, SDK, Spark and the CLI are built on.

    async with connect("127.0.0.1:9092") as cluster:
        async with Producer(cluster) as producer:
            receipt = await producer.publish("orders", b"hello", key=b"c-42")
        async with Consumer(cluster, ["orders"], group=GroupRules("billing")) as consumer:
            async for record in consumer:
                ...

One `Cluster` holds metadata and connections; producers, consumers and admin calls share it. Everything runs on one
loop, every wait has a deadline, and every error is a `HeadraceError` that says whether trying again may help.
"""

from headrace.client.address import Address, parse_address, parse_addresses
from headrace.client.admin import Config, NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.consumer import Consumer, ConsumerSettings
from headrace.client.fetched import ConsumedRecord
from headrace.client.fetcher import FetchingRules
from headrace.client.group_admin import GroupAdmin, GroupView, PartitionLag
from headrace.client.membership import GroupRules
from headrace.client.metadata import ClusterView, PartitionView, TopicPartition, TopicView
from headrace.client.offsets import END, START, Commit, FoundOffset, commit, committed, find_offsets
from headrace.client.producer import Delivery, Producer, ProducerSettings, Receipt
from headrace.client.tcp import TcpDialer
from headrace.client.transaction_admin import OpenTransaction, TransactionAdmin, TransactionView
from headrace.client.transport import Dialer, Transport

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
    "Delivery",
    "Dialer",
    "FetchingRules",
    "FoundOffset",
    "GroupAdmin",
    "GroupRules",
    "GroupView",
    "NewTopic",
    "OpenTransaction",
    "PartitionLag",
    "PartitionView",
    "Producer",
    "ProducerSettings",
    "Receipt",
    "TcpDialer",
    "TopicAdmin",
    "TopicPartition",
    "TopicView",
    "TransactionAdmin",
    "TransactionView",
    "Transport",
    "commit",
    "committed",
    "connect",
    "find_offsets",
    "parse_address",
    "parse_addresses",
]
