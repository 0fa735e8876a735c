"""A scripted cluster to administer: a test sets its partitions and completes its reassignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster

from headrace.machines.controller.leadership import elect_preferred, elect_unclean
from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment
from headrace.model.errors import (
    ElectionNotNeeded,
    HeadraceError,
    InvalidRequest,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import BrokerRecord, PartitionRecord
from headrace.wire import apis
from headrace.wire.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.wire.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DrainBrokerRequest,
    DrainBrokerResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

_MANY = 1000  # responses per kind, more than any test needs


class AdministeredCluster:
    """`page_size`: partitions per page. `polls_left`: how often moves are listed before they are done, None for never.
    `busy`: how many changes are answered with a timeout first."""

    def __init__(self, *node_ids: int) -> None:
        self.live = {node_id: _broker(node_id) for node_id in node_ids}
        self.records: dict[tuple[str, int], PartitionRecord] = {}
        self.min_insync = 1
        self.min_insync_of: dict[str, int] = {}
        self.internal_replication = 3
        self.page_size = 1000
        self.polls_left: int | None = None
        self.busy = 0
        self.controller_id = min(node_ids)
        self.drains: list[tuple[int, bool]] = []
        self.reduces_replicas = False  # of the last drain
        self.throttles: list[tuple[str, str, int, str | None]] = []
        self.brokers: list[ScriptedBroker] = []
        self.without_session: set[int] = set()
        self.silent: set[int] = set()

    def count(self, api_key: int) -> int:
        return sum(broker.count(api_key) for broker in self.brokers)

    async def join(self, scripted_cluster: ScriptedCluster) -> None:
        """Start the brokers."""
        for node_id in self.live:
            broker = await scripted_cluster.broker(node_id)
            self.brokers.append(broker)
            responses: dict[int, Callable[[Any], Any]] = {
                apis.DESCRIBE_CLUSTER: self._describe_cluster(node_id),
                apis.DESCRIBE_TOPIC_PARTITIONS: self._describe_partitions,
                apis.DESCRIBE_CONFIGS: self._describe_configs,
                apis.DESCRIBE_LOG_DIRS: self._log_dirs(node_id),
                apis.LIST_PARTITION_REASSIGNMENTS: self._list_moves,
                apis.ALTER_PARTITION_REASSIGNMENTS: self._move,
                apis.ELECT_LEADERS: self._elect,
                apis.DRAIN_BROKER: self._drain,
                apis.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            }
            for api_key, response in responses.items():
                broker.script(api_key, *[response] * _MANY)

    def drain(self, node_id: int) -> None:
        self.live[node_id] = replace(self.live[node_id], is_draining=True)

    def _describe_cluster(self, node_id: int) -> Callable[[Any], Any]:
        def response(_: Any) -> Any:
            if node_id in self.silent:
                return Fault.CLOSE
            brokers = [
                DescribeClusterBroker(b.node_id, b.host, b.port, b.rack, is_draining=b.is_draining)
                for b in self.live.values()
            ]
            return DescribeClusterResponse(
                cluster_id="scripted",
                controller_id=self.controller_id,
                brokers=brokers,
                session_invalid=node_id in self.without_session,
            )

        return response

    def _describe_partitions(self, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        names = {topic.name for topic in request.topics}
        known = {topic for topic, _ in self.records}
        cursor = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
        keys = [key for key in sorted(self.records) if (not names or key[0] in names) and key >= cursor]
        page, rest = keys[: self.page_size], keys[self.page_size :]
        topics = [
            DescribeTopicPartitionsResponseTopic(name=name, error_code=UnknownTopicOrPartition.code)
            for name in sorted(names - known)
        ]
        for topic in dict.fromkeys(topic for topic, _ in page):
            result = [_described(index, self.records[topic, index]) for name, index in page if name == topic]
            topics.append(DescribeTopicPartitionsResponseTopic(name=topic, partitions=result))
        return DescribeTopicPartitionsResponse(topics=topics, next_cursor=Cursor(*rest[0]) if rest else None)

    def _describe_configs(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for requested in request.resources:
            assert requested.configuration_keys is not None
            (name,) = requested.configuration_keys
            if requested.resource_type == 4:
                assert name.endswith(".replication.factor")
                value = self.internal_replication
            else:
                assert name == "min.insync.replicas"
                value = self.min_insync_of.get(requested.resource_name, self.min_insync)
            config = DescribeConfigsResourceResult(name=name, value=str(value))
            results.append(DescribeConfigsResult(0, None, requested.resource_type, requested.resource_name, [config]))
        return DescribeConfigsResponse(results=results)

    def _log_dirs(self, node_id: int) -> Callable[[DescribeLogDirsRequest], DescribeLogDirsResponse]:
        """A leader has 100 bytes of each partition, everybody else 40."""

        def response(request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
            topics = []
            for requested in request.topics or ():
                held = [
                    DescribeLogDirsPartition(
                        index, 100 if self.records[requested.topic, index].leader == node_id else 40
                    )
                    for index in requested.partitions
                    if node_id in self.records[requested.topic, index].replicas
                ]
                topics.append(DescribeLogDirsTopic(requested.topic, held))
            return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/data", topics=topics)])

        return response

    def _list_moves(self, _: Any) -> ListPartitionReassignmentsResponse:
        if self.polls_left is not None:
            self.polls_left -= 1
            if self.polls_left < 0:
                self.records = {key: _arrived(record) for key, record in self.records.items()}
        moving = [(key, record) for key, record in self.records.items() if record.adding or record.removing]
        return ListPartitionReassignmentsResponse(
            topics=[
                OngoingTopicReassignment(
                    topic,
                    [OngoingPartitionReassignment(index, [*r.replicas], [*r.adding], [*r.removing])],
                )
                for (topic, index), r in moving
            ]
        )

    def _move(self, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
        responses = []
        for topic in request.topics:
            result = []
            for requested in topic.partitions:

                def decide(record: PartitionRecord, replicas: list[int] | None = requested.replicas) -> PartitionRecord:
                    return (
                        cancel_reassignment(record) if replicas is None else begin_reassignment(record, tuple(replicas))
                    )

                code, message = self._change(topic.name, requested.partition_index, decide)
                result.append(ReassignablePartitionResponse(requested.partition_index, code, message))
            responses.append(ReassignableTopicResponse(topic.name, result))
        return AlterPartitionReassignmentsResponse(responses=responses)

    def _elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        def decide(record: PartitionRecord) -> PartitionRecord:
            if request.election_type == 1:
                elected = elect_unclean(record, self.live)
                assert elected is not None
                return elected
            if record.leader == record.replicas[0]:
                raise ElectionNotNeeded("it leads already")
            preferred = elect_preferred(record, self.live, self.min_insync)
            if preferred is None:
                raise PreferredLeaderNotAvailable("it is not up")
            return preferred

        results = []
        for topic in request.topic_partitions or ():
            result = [PartitionResult(i, *self._change(topic.topic, i, decide)) for i in topic.partitions]
            results.append(ReplicaElectionResult(topic.topic, result))
        return ElectLeadersResponse(replica_election_results=results)

    def _drain(self, request: DrainBrokerRequest) -> DrainBrokerResponse:
        self.drains.append((request.broker_id, request.is_drained))
        self.reduces_replicas = request.reduces_replicas
        if request.broker_id not in self.live:
            return DrainBrokerResponse(error_code=InvalidRequest.code, error_message="no such broker")
        return DrainBrokerResponse()

    def _alter_configs(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        result = []
        for requested in request.resources:
            result.append(AlterConfigsResourceResponse(0, None, requested.resource_type, requested.resource_name))
            if requested.resource_type == 2:
                (config,) = requested.configs
                assert config.name == "min.insync.replicas"
                self.min_insync_of[requested.resource_name] = int(config.value or 1)
                continue
            self.throttles += [
                (requested.resource_name, c.name, c.config_operation, c.value) for c in requested.configs
            ]
        return IncrementalAlterConfigsResponse(responses=result)

    def _change(
        self, topic: str, index: int, decide: Callable[[PartitionRecord], PartitionRecord]
    ) -> tuple[int, str | None]:
        try:
            if (topic, index) not in self.records:
                raise UnknownTopicOrPartition(f"there is no partition {topic}-{index}")
            if self.busy:
                self.busy -= 1
                raise RequestTimedOut
            self.records[topic, index] = decide(self.records[topic, index])
        except HeadraceError as error:
            return error.code, error.message
        return 0, None


def led_partition(leader: int, *others: int, first: int | None = None) -> PartitionRecord:
    """A partition that this broker leads, with all in sync; `first` of the replicas is preferred."""
    nodes = (leader, *others)
    replicas = nodes if first is None else (first, *(node_id for node_id in nodes if node_id != first))
    return PartitionRecord(replicas=replicas, isr=replicas, leader=leader, leader_epoch=5, leader_broker_epoch=1)


def _broker(node_id: int) -> BrokerRecord:
    return BrokerRecord(node_id=node_id, epoch=1, host=f"broker{node_id}", port=9092, rack=f"rack{node_id}")


def _arrived(record: PartitionRecord) -> PartitionRecord:
    replicas = tuple(node_id for node_id in record.replicas if node_id not in record.removing)
    return replace(record, replicas=replicas, isr=replicas, adding=(), removing=())


def _described(index: int, record: PartitionRecord) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=record.leader,
        leader_epoch=record.leader_epoch,
        replica_nodes=[*record.replicas],
        isr_nodes=[*record.isr],
        eligible_leader_replicas=[*record.elr],
    )
