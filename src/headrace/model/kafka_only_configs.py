"""Broker configs of Kafka 4.3 that Headrace does not have.

A broker should start with a server.properties that was written for Kafka. Configs that only tune Kafka's threads,
buffers and background work are accepted without effect and reported once at startup. Configs of listeners, security
and data directories are rejected with the option to use instead, because ignoring them would be dangerous.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds background.threads broker.heartbeat.interval.ms
    broker.session.timeout.ms client.quota.callback.class controlled.shutdown.enable
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
    controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    controller.quorum.voters controller.quota.window.num controller.quota.window.size.seconds
    controller.socket.timeout.ms cordoned.log.dirs create.topic.policy.class.name
    delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
    follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms
    group.consumer.max.assignment.interval.ms group.consumer.min.assignment.interval.ms
    group.coordinator.append.linger.ms group.coordinator.background.threads
    group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols group.coordinator.threads
    group.share.assignment.interval.ms group.share.assignors group.share.max.assignment.interval.ms
    group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
    group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
    group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
    group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
    group.streams.num.standby.replicas group.streams.session.timeout.ms initial.broker.registration.timeout.ms
    kafka.metrics.polling.interval.secs kafka.metrics.reporters log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size log.cleaner.threads log.dir.failure.timeout.ms
    log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
    max.connection.creation.rate max.connections.per.ip.overrides max.request.partition.size.limit
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
    metadata.max.retention.bytes metadata.max.retention.ms metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
    offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec process.roles
    producer.purgatory.purge.interval.requests queued.max.requests quota.window.num quota.window.size.seconds
    remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
    remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.min.bytes
    replica.high.watermark.checkpoint.interval.ms replica.selector.class replica.socket.receive.buffer.bytes
    replica.socket.timeout.ms replication.quota.window.num replication.quota.window.size.seconds
    request.timeout.ms share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
    share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
    share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes
    socket.send.buffer.bytes telemetry.max.bytes transaction.partition.verification.enable
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.two.phase.commit.enable
"""
WITHOUT_EFFECT: Final = frozenset(_NAMES.split())

_SECURITY: Final = "the Kafka listener has no TLS and no authentication in this release; remove it (see docs/access.md)"
_LISTENERS: Final = "set the address with --kafka HOST:PORT"
_ELSEWHERE: Final = {
    **dict.fromkeys(("advertised.listeners", "controller.listener.names", "early.start.listeners"), _LISTENERS),
    **dict.fromkeys(("inter.broker.listener.name", "listener.security.protocol.map", "listeners"), _LISTENERS),
    **dict.fromkeys(("broker.id", "node.id"), "set the node id with --node-id"),
    "broker.rack": "set the rack with --rack",
    **dict.fromkeys(("log.dir", "log.dirs", "metadata.log.dir"), "set the data folder with --data"),
    "config.providers": "write the values directly",
    **dict.fromkeys(("authorizer.class.name", "connections.max.reauth.ms", "super.users"), _SECURITY),
    "allow.everyone.if.no.acl.found": _SECURITY,
}
_SECURITY_PREFIXES: Final = (
    "connection.failed.authentication.",
    "delegation.token.",
    "principal.",
    "sasl.",
    "security.",
    "ssl.",
)


def replacement_of(name: str) -> str | None:
    """Return what to do instead of setting this Kafka config, or None if it may be ignored."""
    return _SECURITY if name.startswith(_SECURITY_PREFIXES) else _ELSEWHERE.get(name)
