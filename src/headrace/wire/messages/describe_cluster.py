"""DescribeCluster (60): brokers and controller.

v1 can ask for controllers' endpoints (type 2), v2 also for fenced brokers. `is_draining` is our own, in a tag that
other clients skip: the broker is up, and is to hold nothing or about to go.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire


@message(versions=(0, 2), flexible_since=0)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = wire(BOOL)
    endpoint_type: int = wire(INT8, since=1, default=1)
    include_fenced_brokers: bool = wire(BOOL, since=2)


@part
class DescribeClusterBroker:
    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, nullable=0, default=None)
    is_fenced: bool = wire(BOOL, since=2)
    is_draining: bool = wire(BOOL, tag=10_000, default=False)


@message(versions=(0, 2), flexible_since=0)
class DescribeClusterResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    endpoint_type: int = wire(INT8, since=1, default=1)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = wire(array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(INT32, default=-2147483648)
