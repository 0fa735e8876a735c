"""The table of all routes, collected from the modules that serve them, and the objects that these share."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.publisher import Publisher
from headrace.client.pulling import Pullers
from headrace.doors.rest.dead_letters import DeadLetters
from headrace.doors.rest.messages import Messages
from headrace.doors.rest.openapi import Description
from headrace.doors.rest.publish import Publishing
from headrace.doors.rest.pulls import Pulls
from headrace.doors.rest.rechecks import IsStillWelcome, always_welcome
from headrace.doors.rest.replies import Replies
from headrace.doors.rest.scheduled import Scheduled
from headrace.doors.rest.settles import Settles
from headrace.doors.rest.streams import SubscriptionStreams
from headrace.doors.rest.subscription_directory import SubscriptionDirectory
from headrace.doors.rest.subscriptions import Subscriptions
from headrace.doors.rest.topics import Topics
from headrace.doors.rest.webhooks import StatusOf, Webhooks
from headrace.http.routes import Route
from headrace.push.foreign_settles import Feeds


class Doors:
    """The shared objects of the handlers. `described` are the served routes, for the API description. `status_of`
    returns the push status of a subscription in this process. `is_welcome` returns whether the token of a waiting
    request is still valid."""

    def __init__(
        self,
        cluster: Cluster,
        status_of: StatusOf,
        is_welcome: IsStillWelcome = always_welcome,
        *,
        with_auth: bool,
    ) -> None:
        self.cluster = cluster
        self.status_of = status_of
        self.is_welcome = is_welcome
        self.with_auth = with_auth
        self.publisher = Publisher(cluster)
        self.replies = Replies(cluster)
        self.directory = SubscriptionDirectory(cluster)
        self.pullers = Pullers(cluster)
        self.feeds = Feeds()
        self.described: list[Route] = []

    async def close(self) -> None:
        await self.pullers.close()
        await self.replies.close()
        await self.publisher.close()


def routes(doors: Doors) -> Sequence[Route]:
    cluster, directory = doors.cluster, doors.directory
    return [
        *Topics(cluster).routes(),
        *Publishing(cluster, doors.publisher, doors.replies, doors.is_welcome).routes(),
        *Messages(cluster).routes(),
        *Scheduled(cluster).routes(),
        *Subscriptions(cluster, directory).routes(),
        *Pulls(doors.pullers, directory, doors.is_welcome).routes(),
        *Settles(cluster, directory, doors.feeds).routes(),
        *DeadLetters(cluster).routes(),
        *SubscriptionStreams(cluster, doors.feeds).routes(),
        *Webhooks(cluster, doors.status_of).routes(),
        *Description(doors.described, with_auth=doors.with_auth).routes(),
    ]
