"""The table of all routes, collected from the modules that serve them, and the objects that these share."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.produce.publisher import Publisher
from headrace.client.queues.feed import FeedRegistry
from headrace.client.queues.puller import PullerPool
from headrace.http.routes import Route
from headrace.protocols.rest.authorization_rechecks import IsStillAuthorized, always_authorized
from headrace.protocols.rest.dead_letters import DeadLetterRoutes
from headrace.protocols.rest.messages import MessageRoutes
from headrace.protocols.rest.openapi import ApiDescription
from headrace.protocols.rest.publish import PublishRoutes
from headrace.protocols.rest.pulls import PullRoutes
from headrace.protocols.rest.replies import ReplyService
from headrace.protocols.rest.scheduled import ScheduledRoutes
from headrace.protocols.rest.settles import SettleRoutes
from headrace.protocols.rest.streams import StreamRoutes
from headrace.protocols.rest.subscription_directory import SubscriptionDirectory
from headrace.protocols.rest.subscriptions import SubscriptionRoutes
from headrace.protocols.rest.topics import TopicRoutes
from headrace.protocols.rest.webhooks import StatusOf, WebhookRoutes


class RestServices:
    """The shared objects of the handlers. `described` are the served routes, for the API description. `status_of`
    returns the push status of a subscription in this process. `is_authorized` returns whether the token of a waiting
    request is still valid."""

    def __init__(
        self,
        cluster: Cluster,
        status_of: StatusOf,
        is_authorized: IsStillAuthorized = always_authorized,
        *,
        with_auth: bool,
    ) -> None:
        self.cluster = cluster
        self.status_of = status_of
        self.is_authorized = is_authorized
        self.with_auth = with_auth
        self.publisher = Publisher(cluster)
        self.replies = ReplyService(cluster)
        self.directory = SubscriptionDirectory(cluster)
        self.pullers = PullerPool(cluster)
        self.feeds = FeedRegistry()
        self.described: list[Route] = []

    async def close(self) -> None:
        await self.pullers.close()
        await self.replies.close()
        await self.publisher.close()


def routes(services: RestServices) -> Sequence[Route]:
    cluster, directory = services.cluster, services.directory
    return [
        *TopicRoutes(cluster).routes(),
        *PublishRoutes(cluster, services.publisher, services.replies, services.is_authorized).routes(),
        *MessageRoutes(cluster).routes(),
        *ScheduledRoutes(cluster).routes(),
        *SubscriptionRoutes(cluster, directory).routes(),
        *PullRoutes(services.pullers, directory, services.is_authorized).routes(),
        *SettleRoutes(cluster, directory, services.feeds).routes(),
        *DeadLetterRoutes(cluster).routes(),
        *StreamRoutes(cluster, services.feeds).routes(),
        *WebhookRoutes(cluster, services.status_of).routes(),
        *ApiDescription(services.described, with_auth=services.with_auth).routes(),
    ]
