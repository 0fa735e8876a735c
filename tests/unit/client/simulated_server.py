"""A real broker on a simulated host, for behaviour that a script cannot imitate: groups, configs, logs."""

from __future__ import annotations

from headrace.broker.broker import Broker, open_broker
from headrace.client.cluster import Cluster
from headrace.client.connections.address import Address
from headrace.client.connections.tcp import TcpDialer
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.runtime.tasks import Supervisor
from headrace.testkit.registry import SimRegistry
from headrace.testkit.world import LOCAL, World

ADDRESS = Address("broker", 9092)


async def start_broker(world: World, **configs: str) -> Broker:
    """A broker that listens; configs by Kafka's names, with underscores for dots."""
    host = world.host(ADDRESS.host)
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    host.disk.make_directory("/data")
    supervisor = Supervisor()
    broker = await open_broker(
        "/data", 1, None, settings, SimRegistry(), host.disk, host.network, host.clock, host.entropy, supervisor
    )
    server = KafkaServer("test", broker.handlers, host.network, host.clock, ListenerLimits())
    await server.listen(*ADDRESS)
    await broker.join(*ADDRESS)
    server.start_accepting()
    await broker.cluster.wait_for_leaders()
    return broker


def client(world: World, host_name: str = LOCAL) -> Cluster:
    host = world.host(host_name)
    return Cluster([ADDRESS], TcpDialer(host.network, "test"), host.clock, host.entropy)
