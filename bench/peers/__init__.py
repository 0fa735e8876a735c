"""The peers, one module each: Headrace and the brokers that it is compared with."""

from __future__ import annotations

from pathlib import Path

from bench.peers.headrace import Headrace
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.peer import Peer
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.spark import Spark
from bench.peers.uvicorn_echo import UvicornEcho


def known_peers(ref: str | None) -> dict[str, Peer]:
    """Return all peers by name, in the order of measurement."""
    source = Path(__file__).parent.parent.parent / "src"
    peers: list[Peer] = [
        Headrace("headrace", source, flushes=True),
        Headrace("headrace-cache", source, flushes=False),
        Headrace("headrace-prefetch", source, flushes=True, consumes="prefetches"),
        Headrace("headrace-gather", source, flushes=True, consumes="gathers"),
        Headrace("headrace-3", source, flushes=True, brokers=3),
        Headrace("headrace-rest", source, flushes=True, http=True),
    ]
    if ref is not None:
        peers.append(Headrace.of_ref("headrace", ref, source.parent))
        peers.append(Headrace.of_ref("headrace-3", ref, source.parent, brokers=3))
        peers.append(Headrace.of_ref("headrace-rest", ref, source.parent, http=True))
    peers.append(UvicornEcho())
    peers += [Kafka("kafka-fsync", flushes=True), Kafka("kafka", flushes=False)]
    peers += [Kafka("kafka-3-fsync", flushes=True, brokers=3), Kafka("kafka-3", flushes=False, brokers=3)]
    peers += [Redis("redis-fsync", flushes=True), Redis("redis", flushes=False)]
    peers += [Nats("nats-fsync", flushes=True), Nats("nats", flushes=False)]
    peers += [RabbitMq("rabbitmq"), RabbitMq("rabbitmq-http", http=True)]
    peers += [Spark("headrace-spark", "headrace", Headrace("headrace", source, flushes=True))]
    peers += [Spark("parquet-spark", "parquet", Headrace("headrace", source, flushes=True))]
    peers += [Spark("kafka-spark", "kafka", Kafka("kafka", flushes=False))]
    peers += [Spark("rate-spark", "rate-micro-batch", Headrace("headrace", source, flushes=True))]
    return {peer.name: peer for peer in peers}
