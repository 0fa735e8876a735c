"""Topics over REST: create, list, get, change and delete them.

The ETag of a topic identifies its configs and its number of partitions, so that a client can avoid overwriting a change
of another client. It is compared immediately before the change, but not atomically: two simultaneous changes may both
succeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, ReportedConfigSource, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code
from headrace.client.metadata import TopicView
from headrace.http.message import Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, Operation, Parameter, Route, Verb
from headrace.model.errors import UnknownTopicOrPartition
from headrace.protocols.rest.bodies import boolean_parameter, integer_parameter, parse_body
from headrace.runtime.inline_start import switch_to_task

_LIMIT, _LIMIT_MAX = 100, 1000
_INTERNAL = "__"
_ANY_ETAG = "*"

Partitions = Annotated[int, Meta(ge=1, le=1000)]
ConfigValue = str | int | float | bool


class NewTopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to create. Omitted fields have the broker's defaults."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    partitions: Partitions | UnsetType = UNSET
    replication_factor: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    configs: dict[str, ConfigValue] = {}


class TopicChange(msgspec.Struct, forbid_unknown_fields=True):
    """A config with the value null is reset to its default. Partitions can only be added."""

    configs: dict[str, ConfigValue | None] = {}
    partitions: Partitions | UnsetType = UNSET


class PartitionBody(msgspec.Struct):
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]


class TopicBody(msgspec.Struct):
    """`configs` are the explicitly set ones of this topic."""

    topic: str
    topic_id: str
    partitions: int
    replication_factor: int
    configs: dict[str, str | None]
    placement: list[PartitionBody]


class TopicSummary(msgspec.Struct):
    topic: str
    partitions: int


class TopicsBody(msgspec.Struct, omit_defaults=True):
    """`after` is present if there are more topics: pass it in the next request."""

    topics: list[TopicSummary]
    after: str | None = None


_NEW = msgspec.json.Decoder(NewTopicBody)
_CHANGE = msgspec.json.Decoder(TopicChange)

_IF_MATCH = Parameter("If-Match", str, "change the topic only if it still has this ETag", "header")
_CREATE = Operation("Create a topic", {201: TopicBody}, NewTopicBody, problems=(409,))
_LIST = Operation(
    "List topics by name",
    {200: TopicsBody},
    parameters=(
        Parameter("prefix", str, "only topics whose names begin with this prefix"),
        Parameter("limit", Annotated[int, Meta(ge=1, le=_LIMIT_MAX)], f"at most this many; default {_LIMIT}"),
        Parameter("after", str, "only topics after this name: the `after` of the previous page"),
        Parameter("internal", bool, "include internal topics, whose names begin with __"),
    ),
    problems=(422,),
)
_SHOW = Operation(
    "Get a topic",
    {200: TopicBody, 304: None},
    parameters=(Parameter("If-None-Match", str, "respond with 304 if the topic still has this ETag", "header"),),
)
_PATCH = Operation(
    "Change a topic's configs, or add partitions", {200: TopicBody}, TopicChange, (_IF_MATCH,), problems=(412,)
)
_DELETE = Operation(
    "Delete a topic, all its messages, and the dead letters that the broker kept of them",
    {204: None},
    parameters=(_IF_MATCH,),
    problems=(409, 412),
)


class TopicRoutes:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = TopicAdmin(cluster)

    async def create(self, request: Request) -> Response:
        await switch_to_task()
        body = parse_body(request, _NEW)
        ensure_writable(body.name)
        await self._admin.create(
            NewTopic(
                body.name,
                -1 if body.partitions is UNSET else body.partitions,
                -1 if body.replication_factor is UNSET else body.replication_factor,
                {name: config_text(value) for name, value in body.configs.items()},
            )
        )
        return await self._topic_response(body.name, 201)

    async def page(self, request: Request) -> Response:
        await switch_to_task()
        limit = integer_parameter(request.query, "limit", _LIMIT, 1, _LIMIT_MAX)
        prefix, after = request.query.get("prefix", ""), request.query.get("after", "")
        hidden = "\0" if boolean_parameter(request.query, "internal") else _INTERNAL
        found = [
            TopicSummary(topic.name, len(topic.partitions))
            for topic in await self._admin.list()
            if topic.name.startswith(prefix) and topic.name > after and not topic.name.startswith(hidden)
        ]
        more = found[limit - 1].topic if len(found) > limit else None
        return json_response(TopicsBody(found[:limit], more))

    async def show(self, request: Request) -> Response:
        await switch_to_task()
        response = await self._topic_response(request.params["topic"])
        if _matches(request.headers.get("if-none-match"), response):
            return Response(304, b"", headers=response.headers)
        return response

    async def change(self, request: Request) -> Response:
        await switch_to_task()
        name = request.params["topic"]
        body = parse_body(request, _CHANGE)
        ensure_writable(name)
        await self._check_etag(request)
        if body.configs:
            await self._admin.alter_configs(
                name,
                set_to={key: config_text(value) for key, value in body.configs.items() if value is not None},
                back_to_default=[key for key, value in body.configs.items() if value is None],
            )
        if body.partitions is not UNSET:
            await self._admin.add_partitions(name, body.partitions)
        return await self._topic_response(name)

    async def delete(self, request: Request) -> Response:
        await switch_to_task()
        name = request.params["topic"]
        ensure_writable(name)
        await self._check_etag(request)
        await SubscriptionAdmin(self._cluster).clear_group_configs(name)
        await self._admin.delete(name)
        return Response(204)

    async def _check_etag(self, request: Request) -> None:
        """Raise `Problem` 404 or 412 unless the ETag matches."""
        wanted = request.headers.get("if-match")
        if wanted is None:
            await self._described(request.params["topic"])
        elif not _matches(wanted, await self._topic_response(request.params["topic"])):
            raise Problem(
                412, "topic_changed", "the topic was modified", "GET it and send its current ETag as If-Match"
            )

    async def _topic_response(self, name: str, status: int = 200) -> Response:
        view = await self._described(name)
        configs = {
            one.name: one.value for one in await self._admin.configs(name) if one.source == ReportedConfigSource.TOPIC
        }
        body = TopicBody(
            topic=name,
            topic_id=str(view.topic_id),
            partitions=len(view.partitions),
            replication_factor=len(view.partitions[0].replicas),
            configs=configs,
            placement=[
                PartitionBody(
                    one.partition, one.leader_id if one.leader_id >= 0 else None, [*one.replicas], [*one.in_sync]
                )
                for one in view.partitions
            ],
        )
        return json_response(body, status, [("etag", _etag(view, configs))])

    async def _described(self, name: str) -> TopicView:
        """Fetch the topic from a broker; the cached metadata of other topics is kept."""
        view = await self._cluster.call_with_retries(partial(self._cluster.refresh, [name]))
        found = view.topics.get(name)
        if found is None:
            code = view.topic_errors.get(name, UnknownTopicOrPartition.code)
            raise error_of_code(
                code, f"topic {name!r} does not exist" if code == UnknownTopicOrPartition.code else None
            )
        return found

    def routes(self) -> list[Route]:
        manage, read = Access(Verb.MANAGE, AccessSubject.TOPIC), Access(Verb.READ, AccessSubject.TOPIC)
        return [
            Route("POST", "/topics", self.create, Access(Verb.MANAGE), _CREATE),
            Route("GET", "/topics", self.page, Access(Verb.READ), _LIST),
            Route("GET", "/topics/{topic}", self.show, read, _SHOW),
            Route("PATCH", "/topics/{topic}", self.change, manage, _PATCH),
            Route("DELETE", "/topics/{topic}", self.delete, manage, _DELETE),
        ]


def ensure_writable(topic: str) -> None:
    """Raise `Problem` 403 for internal topics."""
    if topic.startswith(_INTERNAL):
        raise Problem(403, "topic_internal", f"topic {topic} is internal and read-only", "use another topic")


def _matches(wanted: str | None, response: Response) -> bool:
    if wanted is None:
        return False
    etag = dict(response.headers)["etag"]
    return wanted.strip() == _ANY_ETAG or etag in [one.strip().removeprefix("W/") for one in wanted.split(",")]


def _etag(view: TopicView, configs: Mapping[str, str | None]) -> str:
    content = msgspec.json.encode([str(view.topic_id), len(view.partitions), sorted(configs.items())])
    return f'"{blake2b(content, digest_size=8).hexdigest()}"'


def config_text(value: ConfigValue) -> str:
    """Return the value in the form of Kafka's configs."""
    return str(value).lower() if isinstance(value, bool) else str(value)
