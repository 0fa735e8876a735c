"""Which records an unclean election may lose, including those that a replaced leader acknowledges before it knows."""

from __future__ import annotations

import asyncio

from tests.simulation.features.feature import record_final_logs, stored
from tests.simulation.features.unclean import UncleanElections

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.produce.producer import Producer
from headrace.machines.controller.leadership import elect_unclean
from headrace.model.registry_records import NO_LEADER, PartitionRecord
from headrace.registry.topics import change_partition
from headrace.testkit.broker import SimBroker
from headrace.testkit.cluster import SESSION_SECONDS, SimCluster
from headrace.testkit.history import History, SendOperation
from headrace.testkit.registry import SimRegistry
from headrace.testkit.world import World

TOPIC = "risky"
TIMEOUT_SECONDS = 120.0
PAUSE_SECONDS = 5 * SESSION_SECONDS
SETTINGS = {"replica.lag.time.max.ms": "2000"}


class TwoBrokers:
    """A topic with two replicas, of which one suffices to acknowledge."""

    def __init__(self) -> None:
        self.world = World(1)
        self.sim = SimCluster(self.world, 2, SETTINGS)
        self.history = History()
        self.elections = UncleanElections(self.sim, TOPIC, self.history)

    def client(self) -> Cluster:
        host, settings = self.world.host("client"), ClientSettings()
        dialer = TcpDialer(host.network, host.name)
        return Cluster(parse_addresses(self.sim.bootstrap), dialer, host.clock, host.entropy, settings)

    @property
    def record(self) -> PartitionRecord:
        return next(record for topic, _, record in self.sim.places() if topic == TOPIC)

    async def until_leader_is(self, leader: int) -> None:
        while self.record.leader != leader:
            await asyncio.sleep(0.1)

    async def until_well(self) -> None:
        while self.sim.unhealthy_partitions() or self.sim.diverged_partitions():
            await asyncio.sleep(0.1)

    async def elect_unclean(self, broker: SimBroker) -> None:
        """Do what a broker does for an operator. A request could not get past the paused broker."""
        assert broker.broker is not None
        catalogue = broker.broker.catalogue
        await change_partition(
            SimRegistry(self.sim.registry),
            catalogue.topic(TOPIC).id,
            0,
            lambda record: elect_unclean(record, catalogue.live_brokers, favored=(broker.node_id,)),
        )

    async def publish(self, producer: Producer, value: bytes) -> SendOperation:
        self.elections.note_draft(value, 0)
        send = self.history.begin_send("writer", 0, value)
        self.history.end_send(send, (await producer.publish(TOPIC, value, partition=0)).offset)
        return send

    async def run(self) -> tuple[SendOperation, SendOperation]:
        """Replace a paused leader by an unclean election. Return a message that is sent to it just before it wakes, and
        one that is sent when it follows the new leader."""
        await self.sim.start_all()
        async with self.client() as client, Producer(client) as writer:
            await TopicAdmin(client).create(NewTopic(TOPIC, 1, 2, {"min.insync.replicas": "1"}))
            await self.until_well()
            leader = self.sim.brokers[self.record.leader]
            (follower,) = [broker for broker in self.sim.brokers.values() if broker is not leader]
            follower.kill()
            while self.record.isr != (leader.node_id,):
                await asyncio.sleep(0.1)
            await self.publish(writer, b"before")
            wakes_at = asyncio.get_running_loop().time() + PAUSE_SECONDS
            leader.host.pause(PAUSE_SECONDS)
            await follower.start()
            await self.until_leader_is(NO_LEADER)
            await self.elect_unclean(follower)
            await asyncio.sleep(wakes_at - asyncio.get_running_loop().time() - 0.1)
            unaware = await self.publish(writer, b"to the replaced leader")
            await self.until_well()
            aware = await self.publish(writer, b"to the new leader")
            record_final_logs(self.history, stored(self.sim, TOPIC))
            return unaware, aware


def test_a_message_that_a_replaced_leader_acknowledges_when_it_wakes_may_be_lost_and_later_ones_may_not() -> None:
    brokers = TwoBrokers()
    try:
        unaware, aware = brokers.world.run(asyncio.wait_for(brokers.run(), TIMEOUT_SECONDS))
    finally:
        brokers.world.close()
    assert brokers.elections.last_tried < unaware.began
    assert [value for _, value in brokers.history.final[0]] == [aware.value]
    assert brokers.elections.may_lose(unaware)
    assert not brokers.elections.may_lose(aware)
