"""Subscriptions over REST: create, list, get, configure, seek and delete them.

A subscription is identified by its topic and its name, and so is its configuration: it applies to this topic only, and
is deleted with the subscription or the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.admin.subscription_admin import END, START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.admin.webhooks import set_webhook, webhook_configs
from headrace.client.cluster import Cluster
from headrace.http.message import Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Route, Verb
from headrace.model.errors import OffsetOutOfRange
from headrace.model.names import check_group_id
from headrace.protocols.rest.bodies import invalid_parameter, parse_body, rfc3339_time, time_ms
from headrace.protocols.rest.subscription_directory import TOPIC_PARAMETER, SubscriptionDirectory
from headrace.protocols.rest.topics import ConfigValue, config_text, ensure_writable
from headrace.protocols.rest.webhooks import WebhookSettingsBody, webhook_settings
from headrace.runtime.inline_start import switch_to_task

_OFFSET_MAX = 2**63 - 1
_POSITIONS = {"start": START, "earliest": START, "end": END, "latest": END}
_BODY_BYTES_MAX = 64 << 10

_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Configs = dict[str, ConfigValue | None]
_PUSH_PREFIX = "headrace.push."
_Start = Annotated[str, Meta(description="earliest (the default), latest, or a time such as 2027-01-01T09:00:00Z")]
_To = (
    Annotated[str, Meta(description="start, end, or a time such as 2027-01-01T09:00:00Z")]
    | Annotated[int, Meta(ge=0, le=_OFFSET_MAX, description="an offset")]
)


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription to create. Without a start it begins with the oldest message of the topic."""

    name: _Name | UnsetType = UNSET
    subscription_id: _Name | UnsetType = UNSET
    start: _Start = "earliest"
    configs: _Configs = {}
    push: WebhookSettingsBody | None = None


class SubscriptionChange(msgspec.Struct, forbid_unknown_fields=True):
    """A config with the value null is reset to its default."""

    configs: _Configs


class Seek(msgspec.Struct, forbid_unknown_fields=True):
    """The new position, in one partition or in all."""

    to: _To
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class SubscriptionCreated(msgspec.Struct):
    """`push_secret` is returned only here, if push was configured without a secret."""

    subscription_id: str
    topic: str
    push_secret: str | UnsetType = UNSET


class PartitionBacklogBody(msgspec.Struct):
    """All messages below the floor are settled. The backlog is the number of unsettled messages from there to the end,
    including those that are leased, wait for a retry or are becoming dead letters."""

    partition: int
    floor: int
    end: int
    backlog: int
    leased: int
    waiting: int
    dying: int
    oldest_at: str | None


class SubscriptionSummary(msgspec.Struct):
    subscription_id: str
    topic: str
    backlog: int
    leased: int
    waiting: int
    dying: int
    oldest_at: str | None


class SubscriptionBody(SubscriptionSummary):
    """`configs` are the explicitly set ones; secrets have the value null."""

    configs: dict[str, str | None]
    partitions: list[PartitionBacklogBody]


class SubscriptionList(msgspec.Struct):
    subscriptions: list[SubscriptionSummary]


class AckFloor(msgspec.Struct):
    partition: int
    floor: int


class SeekResult(msgspec.Struct):
    subscription_id: str
    topic: str
    partitions: list[AckFloor]


_NEW = msgspec.json.Decoder(NewSubscription)
_CHANGE = msgspec.json.Decoder(SubscriptionChange)
_SEEK = msgspec.json.Decoder(Seek)


class SubscriptionRoutes:
    def __init__(self, cluster: Cluster, directory: SubscriptionDirectory) -> None:
        self._cluster = cluster
        self._directory = directory
        self._admin = SubscriptionAdmin(cluster)

    async def create(self, request: Request) -> Response:
        """Respond with 201 if the subscription was created, and with 200 if it existed: then it keeps its position, and
        only its configuration changes."""
        await switch_to_task()
        topic = request.params["topic"]
        body = parse_body(request, _NEW)
        name = _name_of(body)
        ensure_writable(topic)
        position = _position(body.start, "start", self._cluster.clock.now_ms())
        _check_no_push_configs(body.configs)
        push = None if body.push is None else webhook_settings(body.push)
        secret, is_new = None, not await self._admin.exists(topic, name)
        if is_new:
            configs = {key: config_text(value) for key, value in body.configs.items() if value is not None}
            if push is not None:
                secret = self._cluster.entropy.token(32) if push.secret is None else None
                configs.update(webhook_configs(push, push.secret or secret))
            await self._admin.create(topic, name, position, configs)
        else:
            await self._configure(topic, name, body.configs)
            secret = None if push is None else await set_webhook(self._cluster, topic, name, push)
            await self._admin.create(topic, name, position)
        made = SubscriptionCreated(name, topic, UNSET if secret is None else secret)
        return json_response(made, 201 if is_new else 200)

    async def list_all(self, request: Request) -> Response:
        await switch_to_task()
        backlogs = await self._admin.describe(topics=[request.params["topic"]])
        by_name = groupby(backlogs, key=lambda one: one.subscription)
        return json_response(
            SubscriptionList([_summary(name, request.params["topic"], [*some]) for name, some in by_name])
        )

    async def show(self, request: Request) -> Response:
        await switch_to_task()
        return json_response(await self._body(request.params["topic"], request.params["subscription"]))

    async def change(self, request: Request) -> Response:
        await switch_to_task()
        topic, name = request.params["topic"], request.params["subscription"]
        body = parse_body(request, _CHANGE)
        _check_no_push_configs(body.configs)
        await self._admin.describe(name, [topic])
        await self._configure(topic, name, body.configs)
        return json_response(await self._body(topic, name))

    async def delete(self, request: Request) -> Response:
        await switch_to_task()
        topic, name = request.params["topic"], request.params["subscription"]
        await self._admin.delete(topic, name)
        self._directory.forget(name)
        return Response(204)

    async def seek(self, request: Request) -> Response:
        await switch_to_task()
        topic, name = request.params["topic"], request.params["subscription"]
        body = parse_body(request, _SEEK)
        position = _position(body.to, "to", self._cluster.clock.now_ms())
        try:
            floors = await self._admin.seek(topic, name, position, [] if body.partition is None else [body.partition])
        except OffsetOutOfRange as error:
            raise Problem(
                422, "offset_out_of_range", error.message, "GET the subscription to see its floor and end"
            ) from None
        moved = [AckFloor(target.partition, floor) for target, floor in sorted(floors.items())]
        return json_response(SeekResult(name, topic, moved))

    async def _configure(self, topic: str, name: str, configs: _Configs) -> None:
        if configs:
            await self._admin.configure(
                topic,
                name,
                {key: config_text(value) for key, value in configs.items() if value is not None},
                [key for key, value in configs.items() if value is None],
            )

    async def _body(self, topic: str, name: str) -> SubscriptionBody:
        backlogs = await self._admin.describe(name, [topic])
        summary = _summary(name, topic, backlogs)
        return SubscriptionBody(
            **msgspec.structs.asdict(summary),
            configs=dict(await self._admin.configs(topic, name)),
            partitions=[_partition_backlog(one) for one in backlogs],
        )

    def routes(self) -> list[Route]:
        of_topic, one = "/topics/{topic}/subscriptions", "/topics/{topic}/subscriptions/{subscription}"
        manage, read = Access(Verb.MANAGE, AccessSubject.TOPIC), Access(Verb.READ, AccessSubject.TOPIC)
        created = {201: SubscriptionCreated, 200: SubscriptionCreated}
        create = Operation("Create a subscription", created, NewSubscription)
        list_ = Operation("List the subscriptions of a topic", {200: SubscriptionList})
        show = Operation("Get a subscription", {200: SubscriptionBody})
        change = Operation("Configure a subscription", {200: SubscriptionBody}, SubscriptionChange)
        delete = Operation("Delete a subscription", {204: None})
        seek = Operation(
            "Move a subscription: its leases end, and all messages after the new position are delivered again",
            {200: SeekResult},
            Seek,
            (TOPIC_PARAMETER,),
        )
        by_name, seek_path = Access(Verb.MANAGE, AccessSubject.SUBSCRIPTION), "/subscriptions/{subscription}/seek"
        return [
            Route("POST", of_topic, self.create, manage, create, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
            Route("GET", of_topic, self.list_all, read, list_, ForwarderRole.SUBSCRIBE),
            Route("GET", one, self.show, read, show, ForwarderRole.SUBSCRIBE),
            Route("PATCH", one, self.change, manage, change, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
            Route("DELETE", one, self.delete, manage, delete, ForwarderRole.SUBSCRIBE),
            Route("POST", seek_path, self.seek, by_name, seek, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
        ]


def _check_no_push_configs(configs: _Configs) -> None:
    if any(key.startswith(_PUSH_PREFIX) for key in configs):
        raise Problem(
            422,
            "invalid_config",
            f"{_PUSH_PREFIX}* cannot be set as configs",
            "set `push` when creating the subscription, or PUT /subscriptions/{subscription}/push",
        )


def _name_of(body: NewSubscription) -> str:
    given = {name for name in (body.name, body.subscription_id) if name is not UNSET}
    if len(given) != 1:
        raise Problem(422, "invalid_body", "the subscription must have exactly one name", "specify `name`")
    return check_group_id(str(given.pop()))


def _position(text: str | int, what: str, now_ms: int) -> Position:
    if isinstance(text, int):
        return Position(text)
    if text in _POSITIONS:
        return Position(_POSITIONS[text])
    if text.isdigit() or not text[:1].isdigit():
        offset = ", or an offset as a JSON number" if what == "to" else ""
        raise invalid_parameter(
            what,
            f"{text[:40]!r} is not a position",
            f"use {', '.join(_POSITIONS)}, a time such as 2027-01-01T09:00:00Z{offset}",
        )
    return Position(timestamp_ms=min(time_ms(text, what), now_ms))


def _summary(name: str, topic: str, backlogs: Sequence[PartitionBacklog]) -> SubscriptionSummary:
    oldest = [one.oldest_ms for one in backlogs if one.oldest_ms is not None]
    return SubscriptionSummary(
        subscription_id=name,
        topic=topic,
        backlog=sum(one.backlog for one in backlogs),
        leased=sum(one.leased for one in backlogs),
        waiting=sum(one.waiting for one in backlogs),
        dying=sum(one.dying for one in backlogs),
        oldest_at=rfc3339_time(min(oldest)) if oldest else None,
    )


def _partition_backlog(one: PartitionBacklog) -> PartitionBacklogBody:
    return PartitionBacklogBody(
        one.target.partition,
        one.floor,
        one.end,
        one.backlog,
        one.leased,
        one.waiting,
        one.dying,
        None if one.oldest_ms is None else rfc3339_time(one.oldest_ms),
    )
