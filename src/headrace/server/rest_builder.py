"""Build the REST application of a broker, which accesses its own partitions without a connection, and of a gateway.

Imported on the first REST request, so that the client library does not slow down the startup of a broker.
"""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import Address
from headrace.client.connections.tcp import TcpDialer
from headrace.http.routes import ForwarderRole
from headrace.protocols.rest.application import ALL_ROLES, RestApplication
from headrace.protocols.rest.authorization import AllowAllAuthorizer, Authorizer, TokenAuthorizer
from headrace.protocols.rest.webhooks import StatusOf
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy
from headrace.runtime.network import Network
from headrace.server.in_process import InProcessDialer

_DEADLINE_SECONDS = 20.0
"""How long a request waits out a transient condition, such as a leader election, before it fails with a retriable
error."""


def open_cluster(
    broker: Broker, disk: Disk, network: Network, clock: Clock, entropy: Entropy, client_id: str
) -> Cluster:
    """Open a client that calls this broker directly and others over TCP. The broker must have joined the cluster."""
    identity = broker.identity
    dialer = InProcessDialer(
        broker.handlers,
        lambda: (identity.host, identity.port),
        TcpDialer(network, client_id),
        disk,
        clock,
        client_id,
    )
    settings = ClientSettings(client_id=client_id, deadline_seconds=_DEADLINE_SECONDS)
    return Cluster([Address(identity.host, identity.port)], dialer, clock, entropy, settings)


def build_rest(
    cluster: Cluster,
    *,
    with_auth: bool,
    sides: frozenset[ForwarderRole] = ALL_ROLES,
    status_of: StatusOf = lambda *_: None,
) -> RestApplication:
    """`sides` selects the publisher and subscriber parts. `status_of` returns the push status of a subscription in
    this process."""
    authorizer: Authorizer = TokenAuthorizer(cluster, cluster.clock) if with_auth else AllowAllAuthorizer()
    return RestApplication(cluster, authorizer, sides, status_of=status_of)
