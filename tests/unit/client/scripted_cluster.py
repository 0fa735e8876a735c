"""A scripted broker for unit tests: real frames over the simulated network, responses from a script.

Without a script the broker works: it knows topics, stores produced batches with Kafka's check of sequences, and serves
them. `script(API, ...)` sets the next responses, one per request: a message, a function of the request, or a Fault.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, TypeVar

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import Address
from headrace.client.connections.tcp import TcpDialer
from headrace.client.metadata import TopicPartition
from headrace.model.errors import NotLeader, OutOfOrderSequence, UnknownTopicOrPartition
from headrace.runtime.network import ByteStream
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.apis import APIS
from headrace.wire.batches.batch import BatchRecord, assign_offset_and_epoch, parse_header, read_records
from headrace.wire.codec.codec import decode, encode
from headrace.wire.codec.header import encode_response_header, parse_request_header
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from headrace.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.wire.messages.transactions import InitProducerIdResponse

T = TypeVar("T")


class Fault(Enum):
    """What can happen to a request instead of a response."""

    SILENCE = auto()  # the request is read; it and all later ones get no response
    CLOSE = auto()  # the connection closes; nothing was done
    DONE_THEN_CLOSE = auto()  # it takes effect, and the connection closes before the response


ScriptedResponse = Any  # a message, a Fault, or a function of the request that returns one


class ScriptedCluster:
    """The brokers of a test; they lead partitions and share the written records."""

    def __init__(self, world: World, **topics: int) -> None:
        self.world = world
        self.topics = dict(topics)
        self.brokers: dict[int, ScriptedBroker] = {}
        self.leaders: dict[TopicPartition, int] = defaultdict(lambda: 1)
        self.epochs: dict[TopicPartition, int] = defaultdict(int)
        self.logs: dict[TopicPartition, bytearray] = defaultdict(bytearray)
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        self.sequences: dict[tuple[TopicPartition, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.next_producer_id = 1000

    async def broker(self, node_id: int = 1) -> ScriptedBroker:
        """Start a broker."""
        broker = self.brokers[node_id] = ScriptedBroker(self, node_id)
        await self.world.network.at(broker.address.host).listen(*broker.address, broker.accept)
        return broker

    def cluster(self, settings: ClientSettings | None = None, *bootstrap: Address) -> Cluster:
        """A client of these brokers."""
        addresses = bootstrap or tuple(broker.address for broker in self.brokers.values())
        dialer = TcpDialer(self.world.network, "test")
        return Cluster(addresses, dialer, self.world.clock, self.world.entropy, settings)

    def records(self, topic: str, partition: int = 0) -> list[BatchRecord]:
        """What has been written to a partition, in order."""
        log = memoryview(bytes(self.logs[TopicPartition(topic, partition)]))
        position = 0
        found: list[BatchRecord] = []
        while position < len(log):
            header = parse_header(log, position)
            batch = log[position : position + header.size_bytes]
            found += read_records(batch, header, 1 << 24)
            position += header.size_bytes
        return found

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records(topic, partition)]


class ScriptedBroker:
    def __init__(self, scripted_cluster: ScriptedCluster, node_id: int) -> None:
        self.cast = scripted_cluster
        self.node_id = node_id
        self.address = Address(f"broker{node_id}", 9092)
        self.requests: list[tuple[int, int, Any]] = []
        self.versions = {api.key: (api.advertised_min, api.max_version) for api in APIS.values()}
        self._scripts: dict[int, deque[ScriptedResponse]] = defaultdict(deque)
        self._waiting_fetches: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def script(self, api_key: int, *responses: ScriptedResponse) -> None:
        self._scripts[api_key].extend(responses)

    def count(self, api_key: int) -> int:
        return sum(key == api_key for key, _, _ in self.requests)

    def accept(self, stream: ByteStream) -> None:
        connection = _Connection(stream, self)
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def respond(self, api_key: int, version: int, request: Any) -> ScriptedResponse:
        self.requests.append((api_key, version, request))
        script = self._scripts[api_key]
        response: ScriptedResponse = script.popleft() if script else self._behave
        if response is Fault.DONE_THEN_CLOSE:
            await self._behave(request)
            return Fault.CLOSE
        if callable(response):
            response = response(request)
        return await response if isinstance(response, Coroutine) else response

    async def _behave(self, request: Any) -> Any:
        behaviours: dict[str, Callable[[Any], Any]] = {
            "ApiVersionsRequest": self._api_versions,
            "MetadataRequest": self._metadata,
            "InitProducerIdRequest": self._init_producer_id,
            "ProduceRequest": self._produce,
            "ListOffsetsRequest": self._list_offsets,
            "FetchRequest": self._fetch,
        }
        response = behaviours[type(request).__name__](request)
        return await response if isinstance(response, Coroutine) else response

    def _api_versions(self, _: Any) -> ApiVersionsResponse:
        keys = [ApiVersion(api_key=k, min_version=low, max_version=high) for k, (low, high) in self.versions.items()]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        scripted_cluster = self.cast
        names = (
            list(scripted_cluster.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=b.node_id, host=b.address.host, port=b.address.port)
                for b in scripted_cluster.brokers.values()
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        scripted_cluster = self.cast
        if name not in scripted_cluster.topics:
            return MetadataResponseTopic(name=name, error_code=UnknownTopicOrPartition.code)
        partitions = []
        for number in range(scripted_cluster.topics[name]):
            target = TopicPartition(name, number)
            leader, epoch = scripted_cluster.leaders[target], scripted_cluster.epochs[target]
            partitions.append(
                MetadataResponsePartition(
                    partition_index=number,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                )
            )
        return MetadataResponseTopic(name=name, partitions=partitions)

    def _init_producer_id(self, _: Any) -> InitProducerIdResponse:
        self.cast.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.cast.next_producer_id, producer_epoch=0)

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        responses = []
        for topic in request.topic_data:
            result = []
            for data in topic.partition_data:
                assert data.records is not None
                code, offset = self._append(TopicPartition(topic.name, data.index), bytearray(data.records))
                result.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=result))
        return ProduceResponse(responses=responses) if request.acks else None

    def _append(self, target: TopicPartition, batch: bytearray) -> tuple[int, int]:
        scripted_cluster = self.cast
        if scripted_cluster.leaders[target] != self.node_id:
            return NotLeader.code, -1
        header = parse_header(batch)
        if header.producer_id >= 0:
            past = scripted_cluster.sequences[target, header.producer_id]
            for first, last, offset in past[-5:]:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return 0, offset
            if header.base_sequence != (past[-1][1] + 1 if past else 0):
                return OutOfOrderSequence.code, -1
            past.append((header.base_sequence, header.last_sequence, scripted_cluster.ends[target]))
        offset = scripted_cluster.ends[target]
        assign_offset_and_epoch(memoryview(batch), offset, 0)
        scripted_cluster.logs[target] += batch
        scripted_cluster.ends[target] += header.record_count
        for broker in scripted_cluster.brokers.values():
            for waiting in broker._waiting_fetches:
                waiting.set()
        return 0, offset

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            result = [
                ListOffsetsPartitionResponse(
                    partition_index=p.partition_index,
                    offset=0 if p.timestamp == -2 else self.cast.ends[TopicPartition(topic.name, p.partition_index)],
                )
                for p in topic.partitions
            ]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=result))
        return ListOffsetsResponse(topics=topics)

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        response = self._read(request)
        if not any(result.records for topic in response.responses for result in topic.partitions):
            arrived = asyncio.Event()
            self._waiting_fetches.append(arrived)
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await arrived.wait()
            except TimeoutError:
                pass
            self._waiting_fetches.remove(arrived)
            response = self._read(request)
        return response

    def _read(self, request: FetchRequest) -> FetchResponse:
        responses = []
        for topic in request.topics:
            result = []
            for wanted in topic.partitions:
                target = TopicPartition(topic.topic, wanted.partition)
                code = 0 if self.cast.leaders[target] == self.node_id else NotLeader.code
                if not code and wanted.fetch_offset > self.cast.ends[target]:
                    code = 1
                result.append(
                    PartitionData(
                        partition_index=wanted.partition,
                        error_code=code,
                        high_watermark=self.cast.ends[target],
                        last_stable_offset=self.cast.ends[target],
                        records=None if code else self._batches_from(target, wanted.fetch_offset),
                    )
                )
            responses.append(FetchableTopicResponse(topic=topic.topic, partitions=result))
        return FetchResponse(responses=responses)

    def _batches_from(self, target: TopicPartition, offset: int) -> bytes:
        log, position = bytes(self.cast.logs[target]), 0
        while position < len(log):
            header = parse_header(log, position)
            if header.next_offset > offset:
                break
            position += header.size_bytes
        return log[position:]


class _Connection:
    """Responds to the frames of one client in order."""

    def __init__(self, stream: ByteStream, broker: ScriptedBroker) -> None:
        self._link = stream
        self._broker = broker
        self._readable = asyncio.Event()
        self._buffer = bytearray()

    async def serve(self) -> None:
        try:
            while (frame := await self._frame()) is not None:
                if not await self._serve_one(memoryview(frame)):
                    break
        except OSError:
            pass
        self._link.close()

    async def _serve_one(self, frame: memoryview) -> bool:
        header, position = parse_request_header(frame)
        api = APIS[header.api_key]
        request = decode(api.request, header.api_version, frame, position)
        response = await self._broker.respond(header.api_key, header.api_version, request)
        if response is Fault.CLOSE:
            return False
        if response is Fault.SILENCE:
            await asyncio.Event().wait()
        if response is None:
            return True
        if isinstance(response, bytes):
            await self._send(response)
            return True
        version = header.api_version
        if header.api_key == apis.API_VERSIONS and response.error_code:
            version = 0  # the form that every client can read
        tagged = api.response_header_version(header.api_version) == 1
        body = b"".join(bytes(chunk) for chunk in encode(response, version))  # type: ignore[call-overload]
        message = encode_response_header(header.correlation_id, tagged) + body
        await self._send(len(message).to_bytes(4, "big") + message)
        return True

    async def _frame(self) -> bytes | None:
        while True:
            if len(self._buffer) >= 4:
                end = 4 + int.from_bytes(self._buffer[:4], "big")
                if len(self._buffer) >= end:
                    frame = bytes(self._buffer[4:end])
                    del self._buffer[:end]
                    return frame
            piece = bytearray(65536)
            try:
                count = self._link.receive_into(piece)
            except BlockingIOError:
                # Watched only while waiting: a link calls back for as long as there is something to read.
                self._readable.clear()
                self._link.when_readable(self._readable.set)
                await self._readable.wait()
                self._link.when_readable(None)
                continue
            if count == 0:
                return None
            self._buffer += piece[:count]

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        writable = asyncio.Event()
        while rest:
            try:
                rest = rest[self._link.send([rest], False) :]
            except BlockingIOError:
                writable.clear()
                self._link.when_writable(writable.set)
                await writable.wait()
                self._link.when_writable(None)


def in_world(scenario: Callable[[World], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    """Run a scenario to its end in a world of its own."""
    world = World(seed)
    try:
        return world.run(scenario(world))
    finally:
        world.close()
