"""The request handlers of share groups. Their modules are imported on the first request: keeps startup fast."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.broker.cluster.peers import Peers
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.handlers import HandlerFunction
from headrace.broker.queues.subscription_admin import SubscriptionAdminRequests
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.queues.subscriptions import SubscriptionCoordinator
from headrace.broker.request_context import RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.runtime.clock import Clock
from headrace.wire import apis

if TYPE_CHECKING:
    from headrace.broker.share_groups.share_fetch import ShareAcknowledgeHandler, ShareFetchHandler
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

    def table(self) -> dict[int, HandlerFunction]:
        return {
            apis.SHARE_GROUP_HEARTBEAT: self._heartbeat,
            apis.SHARE_GROUP_DESCRIBE: self._describe,
            apis.SHARE_FETCH: self._fetch,
            apis.SHARE_ACKNOWLEDGE: self._acknowledge,
            apis.DESCRIBE_SHARE_GROUP_OFFSETS: self._describe_offsets,
            apis.ALTER_SHARE_GROUP_OFFSETS: self._alter_offsets,
            apis.DELETE_SHARE_GROUP_OFFSETS: self._delete_offsets,
        }

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
    def _fetches(self) -> ShareFetchHandler:
        from headrace.broker.share_groups.share_fetch import ShareFetchHandler

        return ShareFetchHandler(self._catalogue, self.leases, self._clock)

    @cached_property
    def _acknowledgements(self) -> ShareAcknowledgeHandler:
        from headrace.broker.share_groups.share_fetch import ShareAcknowledgeHandler

        return ShareAcknowledgeHandler(self._catalogue, self.leases)

    @cached_property
    def offsets_lookup(self) -> ShareOffsetsLookup:
        from headrace.broker.share_groups.share_group_offsets import ShareOffsetsLookup

        return ShareOffsetsLookup(self._catalogue, self._admin, self._peers, self._node_id)

    @cached_property
    def _offsets(self) -> ShareGroupOffsets:
        from headrace.broker.share_groups.share_group_offsets import ShareGroupOffsets

        return ShareGroupOffsets(self._coordinator, self._catalogue, self.offsets_lookup)

    # Requests

    async def _heartbeat(self, request: Any, context: RequestContext) -> Any:
        return await self._members.heartbeat(request, context)

    async def _describe(self, request: Any, context: RequestContext) -> Any:
        return await self._members.describe(request, context)

    async def _fetch(self, request: Any, context: RequestContext) -> Any:
        return await self._fetches.handle(request, context)

    async def _acknowledge(self, request: Any, context: RequestContext) -> Any:
        return await self._acknowledgements.handle(request, context)

    async def _describe_offsets(self, request: Any, context: RequestContext) -> Any:
        return await self._offsets.describe(request, context)

    async def _alter_offsets(self, request: Any, context: RequestContext) -> Any:
        return await self._offsets.alter(request, context)

    async def _delete_offsets(self, request: Any, context: RequestContext) -> Any:
        return await self._offsets.delete(request, context)
