"""A Kafka listener with scripted handlers, and clients, in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.broker.handlers import RequestContext, RequestHandler, RequestHandlers
from headrace.model.errors import UnsupportedVersion
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.storage.log.reading import LogSlice
from headrace.testkit.disk import SimFile
from headrace.testkit.links import SimByteStream
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.codec.codec import decode, encode
from headrace.wire.codec.header import encode_request_header, parse_response_header
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from headrace.wire.messages.produce import ProduceRequest, ProduceResponse

PORT = 9092


class ScriptedHandlers:
    """Handlers of named requests: a request waits while its name is closed."""

    def __init__(self, file: SimFile) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.contexts: list[RequestContext] = []
        self.file = file
        self._closed: dict[str, asyncio.Event] = {}

    def close(self, *names: str) -> None:
        for name in names:
            self._closed[name] = asyncio.Event()

    def open(self, *names: str) -> None:
        for name in names:
            self._closed.pop(name).set()

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        (topic,) = request.topics or []
        name = topic.name or ""
        if name.startswith("hold"):
            context.hold()
        await self._go_through(name, context)
        if name.startswith("hold"):
            context.release()
        if name.startswith("unencodable"):
            return MetadataResponse(controller_id=2**40)
        if name.startswith("large"):
            name = name.ljust(30_000, ".")
        return MetadataResponse(topics=[MetadataResponseTopic(name=name)])

    async def fetch(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        name = request.topics[0].topic
        await self._go_through(name, context)
        records = LogSlice(self.file, 0, self.file.size(), 0)
        data = PartitionData(records=records)
        return FetchResponse(responses=[FetchableTopicResponse(topic=name, partitions=[data])])

    async def produce(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
        await self._go_through(request.transactional_id or "", context)
        return None if request.acks == 0 else ProduceResponse()

    async def api_versions(self, _: ApiVersionsRequest | None, context: RequestContext) -> ApiVersionsResponse:
        await self._go_through("versions", context)
        error_code = UnsupportedVersion.code if context.version < 0 else 0
        return ApiVersionsResponse(error_code=error_code, api_keys=[ApiVersion(api_key=18, max_version=4)])

    async def _go_through(self, name: str, context: RequestContext) -> None:
        self.started.append(name)
        self.contexts.append(context)
        if name.startswith("bug"):
            raise ZeroDivisionError(name)
        if name in self._closed:
            try:
                await self._closed[name].wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
        if name.endswith("late bug"):
            raise ZeroDivisionError(name)
        if name.startswith("close"):
            context.close_connection()
        self.ended.append(name)


class KafkaTestClient:
    """The client's end of a connection; it reads unless told not to."""

    def __init__(self, link: SimByteStream) -> None:
        self.link = link
        self.answers: list[tuple[int, bytes]] = []  # correlation id and the rest
        self.closed = False
        self._received = bytearray()
        self._unsent = bytearray()
        self._next = 0
        self.read(True)

    def read(self, reading: bool) -> None:
        self.link.when_readable(self._on_readable if reading else None)

    def send(self, data: bytes) -> None:
        self._unsent += data
        self.link.when_writable(self._on_writable)

    def ask(self, *names: str) -> None:
        """Return pipelined Metadata requests with these names."""
        self.send(b"".join(self.frame(MetadataRequest(topics=[MetadataRequestTopic(name=name)])) for name in names))

    def fetch(self, name: str) -> None:
        self.send(self.frame(FetchRequest(topics=[FetchTopic(topic=name)]), 4))

    def produce(self, name: str, acks: int = -1) -> None:
        self.send(self.frame(ProduceRequest(transactional_id=name, acks=acks), 3))

    def frame(self, request: object, version: int = 1, client_id: str | None = "caller") -> bytes:
        (api,) = [api for api in apis.APIS.values() if api.request is type(request)]
        chunks: list[Any] = [encode_request_header(api, version, self._next, client_id), *encode(request, version)]
        payload = b"".join(chunks)
        self._next += 1
        return len(payload).to_bytes(4, "big") + payload

    @property
    def heard(self) -> list[int]:
        return [correlation_id for correlation_id, _ in self.answers]

    def names(self) -> list[str]:
        """Return the names in the Metadata responses."""
        return [
            (decode(MetadataResponse, 1, memoryview(body)).topics[0].name or "").rstrip(".") for _, body in self.answers
        ]

    def close(self) -> None:
        self.link.close()

    def _on_readable(self) -> None:
        buffer = bytearray(65_536)
        try:
            count = self.link.receive_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.closed = True
            self.link.when_readable(None)
            return
        self._received += buffer[:count]
        while len(self._received) >= 4 and len(self._received) >= (size := 4 + int.from_bytes(self._received[:4])):
            body = memoryview(bytes(self._received[4:size]))
            correlation_id, position = parse_response_header(body, tagged=False)
            self.answers.append((correlation_id, bytes(body[position:])))
            del self._received[:size]

    def _on_writable(self) -> None:
        with suppress(BlockingIOError, OSError):
            del self._unsent[: self.link.send([bytes(self._unsent)], False)]
        if not self._unsent or self.link.closed:
            self.link.when_writable(None)


class ConnectionHarness:
    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.host("broker")
        disk = self.host.disk
        disk.make_directory("/data")
        file = disk.open("/data/log", create=True)
        file.append([bytes(range(256)) * 16])
        self.script = ScriptedHandlers(file)
        self.server: KafkaServer

    async def open(self, limits: ListenerLimits | None = None) -> None:
        await self.host.start(self._open(limits or ListenerLimits()), "kafka server")

    async def _open(self, limits: ListenerLimits) -> None:
        script = self.script
        handlers = RequestHandlers(
            [
                RequestHandler(apis.PRODUCE, script.produce),
                RequestHandler(apis.FETCH, script.fetch),
                RequestHandler(apis.METADATA, script.metadata),
                RequestHandler(apis.API_VERSIONS, script.api_versions),
            ]
        )
        self.server = KafkaServer("PLAINTEXT", handlers, self.host.network, self.host.clock, limits)
        await self.server.listen("broker", PORT)
        self.server.start_accepting()
        self.host.start(self.server.run_sweeps(), "sweep")

    async def call(self, host: str = "client") -> KafkaTestClient:
        return KafkaTestClient(await self.world.host(host).network.connect("broker", PORT, 5.0))

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        deadline = self.world.loop.time() + seconds
        while not condition():
            assert self.world.loop.time() < deadline, "timed out"
            await asyncio.sleep(0.001)

    async def pass_time(self, seconds: float = 0.1) -> None:
        """Wait until all data in flight have arrived."""
        await asyncio.sleep(seconds)

    def check(self) -> None:
        assert self.script.file._pins == 0, "a slice was not released"
