"""The request handlers of share groups. Their modules are imported on the first request: keeps startup fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.broker.cluster.peers import Peers
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.handlers import HandlerFunction, Request, RequestContext, RequestHandler, Response
from headrace.broker.queues.subscription_admin import SubscriptionAdminRequests
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.topic_catalogue import Catalogue
from headrace.runtime.clock import Clock
from headrace.wire import apis

if TYPE_CHECKING:
    from headrace.broker.share_groups.share_fetch import ShareFetchRequests
    from headrace.broker.share_groups.share_group_offsets import ShareGroupOffsets, ShareOffsetsLookup
    from headrace.broker.share_groups.share_group_requests import ShareGroupRequests
    from headrace.broker.share_groups.share_leases import ShareLeases


class ShareRequests:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalogue: Catalogue,
        subscriptions: SubscriptionCoordinator,
        admin: SubscriptionAdminRequests,
        group_configs: GroupConfigs,
        configs: SubscriptionConfigs,
        peers: Peers,
        node_id: int,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._subscriptions = subscriptions
        self._admin = admin
        self._group_configs = group_configs
        self._configs = configs
        self._peers = peers
        self._node_id = node_id
        self._clock = clock

    def handlers(self) -> list[RequestHandler[Any, Any]]:
        return [
            RequestHandler(apis.SHARE_GROUP_HEARTBEAT, _lazily(lambda: self._members.heartbeat)),
            RequestHandler(apis.SHARE_GROUP_DESCRIBE, _lazily(lambda: self._members.describe)),
            RequestHandler(apis.SHARE_FETCH, _lazily(lambda: self._fetches.fetch)),
            RequestHandler(apis.SHARE_ACKNOWLEDGE, _lazily(lambda: self._fetches.acknowledge)),
            RequestHandler(apis.DESCRIBE_SHARE_GROUP_OFFSETS, _lazily(lambda: self._offsets.describe)),
            RequestHandler(apis.ALTER_SHARE_GROUP_OFFSETS, _lazily(lambda: self._offsets.alter)),
            RequestHandler(apis.DELETE_SHARE_GROUP_OFFSETS, _lazily(lambda: self._offsets.delete)),
        ]

    async def forget(self, group_id: str, context: RequestContext) -> None:
        """Delete the configuration of the group, then its settled offsets on all brokers."""
        await self._group_configs.replace(group_id, {}, dry_run=False)
        await self.offsets_lookup.forget(group_id, context)

    def stop(self) -> None:
        """End all waiting requests, because the broker is shutting down."""
        if "leases" in self.__dict__:  # otherwise there was no share request
            self.leases.stop()

    @cached_property
    def leases(self) -> ShareLeases:
        from headrace.broker.share_groups.share_leases import ShareLeases

        return ShareLeases(self._catalogue, self._subscriptions, self._group_configs, self._configs)

    # Handlers, created on first use

    @cached_property
    def _members(self) -> ShareGroupRequests:
        from headrace.broker.share_groups.share_group_requests import ShareGroupRequests

        return ShareGroupRequests(self._coordinator, self._catalogue)

    @cached_property
    def _fetches(self) -> ShareFetchRequests:
        from headrace.broker.share_groups.share_fetch import ShareFetchRequests

        return ShareFetchRequests(self._catalogue, self.leases, self._clock)

    @cached_property
    def offsets_lookup(self) -> ShareOffsetsLookup:
        from headrace.broker.share_groups.share_group_offsets import ShareOffsetsLookup

        return ShareOffsetsLookup(self._catalogue, self._admin, self._peers, self._node_id)

    @cached_property
    def _offsets(self) -> ShareGroupOffsets:
        from headrace.broker.share_groups.share_group_offsets import ShareGroupOffsets

        return ShareGroupOffsets(self._coordinator, self._catalogue, self.offsets_lookup)


def _lazily(find: Callable[[], HandlerFunction[Request, Response]]) -> HandlerFunction[Request, Response]:
    """Find the function at the first request, because that loads its module."""

    async def handle(request: Request, context: RequestContext) -> Response | None:
        return await find()(request, context)

    return handle
