"""The REST application: route, authenticate and authorize requests, and call their handlers.

    head complete: route (404, 405) -> authenticate (401, 429) -> find the topic (404, 409) -> authorize (403)
                   -> reject unknown parameters and encodings (415, 422)
    body complete: if it came later than the head, the same checks again -> handler

- A body is read only if the client is authorized to send it, and processed only if it is still authorized.
- Every error becomes a problem with a stable code. Any other exception is a bug, to which the listener responds.
"""

from __future__ import annotations

from functools import partial

from headrace.client.cluster import Cluster
from headrace.client.produce.publisher import Publisher
from headrace.client.queues.feed import FeedRegistry
from headrace.client.queues.puller import PullerPool
from headrace.http.message import HttpResponse, Request, Response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Route, RouteTable, Verb
from headrace.model.errors import HeadraceError
from headrace.protocols.rest.authorization import ANONYMOUS, AllowAllAuthorizer, Authorizer
from headrace.protocols.rest.authorization_rechecks import with_authorization_rechecks
from headrace.protocols.rest.bodies import invalid_parameter
from headrace.protocols.rest.dead_letters import DeadLetterRoutes
from headrace.protocols.rest.error_responses import problem_of_error
from headrace.protocols.rest.messages import MessageRoutes
from headrace.protocols.rest.openapi import ApiDescription
from headrace.protocols.rest.publish import PublishRoutes, ReplyService
from headrace.protocols.rest.pull import PullRoutes
from headrace.protocols.rest.scheduled import ScheduledRoutes
from headrace.protocols.rest.settle import SettleRoutes
from headrace.protocols.rest.streams import StreamRoutes
from headrace.protocols.rest.subscription_directory import SubscriptionDirectory
from headrace.protocols.rest.subscriptions import SubscriptionRoutes
from headrace.protocols.rest.topics import TopicRoutes
from headrace.protocols.rest.webhooks import StatusOf, WebhookRoutes

ALL_ROLES = frozenset({ForwarderRole.PUBLISH, ForwarderRole.SUBSCRIBE})
BODY_BYTES_MAX = 1 << 20
"""The default body limit of routes that accept a body."""
_METRICS = Access(Verb.METRICS, AccessSubject.CLUSTER)
_KEPT_MAX, _KEPT_LENGTH_MAX = 1024, 256


class RestApplication:
    """`roles` selects the publisher and subscriber routes. `status_of` returns the push status of a subscription in
    this process. Close it after its listener has been drained."""

    def __init__(
        self,
        cluster: Cluster,
        authorizer: Authorizer,
        roles: frozenset[ForwarderRole] = ALL_ROLES,
        *,
        status_of: StatusOf = lambda *_: None,
    ) -> None:
        self.cluster = cluster
        self.pullers = PullerPool(cluster)
        self.publisher = Publisher(cluster)
        self._replies = ReplyService(cluster)
        self._directory = directory = SubscriptionDirectory(cluster)
        self._authorizer = authorizer
        self._is_public = isinstance(authorizer, AllowAllAuthorizer)  # then requests need no check
        feeds, is_authorized = FeedRegistry(), authorizer.is_still_authorized
        served: list[Route] = []
        routes = (
            *TopicRoutes(cluster).routes(),
            *PublishRoutes(cluster, self.publisher, self._replies, is_authorized).routes(),
            *MessageRoutes(cluster).routes(),
            *ScheduledRoutes(cluster).routes(),
            *SubscriptionRoutes(cluster, directory).routes(),
            *PullRoutes(self.pullers, directory, is_authorized).routes(),
            *SettleRoutes(cluster, directory, feeds).routes(),
            *DeadLetterRoutes(cluster).routes(),
            *StreamRoutes(cluster, feeds).routes(),
            *WebhookRoutes(cluster, status_of).routes(),
            *ApiDescription(served, with_auth=not self._is_public).routes(),
        )
        served += [route for route in routes if route.role is ForwarderRole.BOTH or route.role in roles]
        self.routes = RouteTable(served)
        self._route_cache: dict[tuple[str, str], tuple[Route, dict[str, str]]] = {}

    def body_limit(self, method: str, path: str) -> int:
        """Return 0 for a route that accepts no body. This includes all public routes, so that no body is buffered for a
        client without a token."""
        try:
            route, _ = self._find_route(method, path)
        except Problem:
            return BODY_BYTES_MAX  # `admit` rejects the request; a short body is read and dropped
        return 0 if route.operation.body is None else route.body_bytes_max or BODY_BYTES_MAX

    async def admit(self, request: Request) -> None:
        """Raise `Problem` unless the route exists and the client may use it."""
        route, params = self._find_route(request.method, request.path)
        request.params = params.copy()  # handlers add to them
        await self._check_access(request, route.access)
        _check_nothing_ignored(request, route)

    async def admit_metrics(self, request: Request) -> None:
        """Raise `Problem` unless the client may read the metrics, which name all topics and subscriptions."""
        await self._check_access(request, _METRICS)

    async def handle(self, request: Request) -> HttpResponse:
        """Handle a request that `admit` has accepted; raise `Problem` if it fails."""
        route, _ = self._find_route(request.method, request.path)
        try:
            response = await route.handle(request)
        except HeadraceError as error:
            raise problem_of_error(error) from None
        if isinstance(response, Response):
            return response
        return with_authorization_rechecks(response, partial(self._authorizer.is_still_authorized, request))

    async def close(self) -> None:
        """Fail waiting requests with the information that the server is stopping."""
        await self.pullers.close()
        await self._replies.close()
        await self.publisher.close()
        self.cluster.close()

    def _find_route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Find the route. Results are cached, because paths repeat and each request is routed twice."""
        found = self._route_cache.get((method, path))
        if found is None:
            found = self.routes.find(method, path)
            if len(self._route_cache) >= _KEPT_MAX:
                self._route_cache.clear()
            if len(path) <= _KEPT_LENGTH_MAX:
                self._route_cache[method, path] = found
        return found

    async def _check_access(self, request: Request, access: Access) -> None:
        if access.verb is Verb.PUBLIC:
            return
        try:
            await self._authorize(request, access)
        except HeadraceError as error:
            raise problem_of_error(error) from None

    async def _authorize(self, request: Request, access: Access) -> None:
        request.caller = caller = ANONYMOUS if self._is_public else await self._authorizer.authenticate(request)
        topic = request.params.get("topic")
        if access.subject is AccessSubject.SUBSCRIPTION:
            named = topic or request.query.get("topic")
            if named is not None and not self._is_public:
                caller.require(access.verb, named)
            if topic is None:
                topic = await self._topic_of(request, named, access.verb)
        elif access.subject is not AccessSubject.TOPIC:
            topic = None
        if not self._is_public:
            caller.require(access.verb, topic)

    async def _topic_of(self, request: Request, named: str | None, verb: Verb) -> str:
        """Find the topic of a subscription unless the path contains it. Topics without permission are treated as
        non-existent, so that an error does not reveal their names or subscriptions."""
        may_use = partial(request.caller.may, verb)
        found = await self._directory.topic_of(request.params["subscription"], named, may_use)
        request.params["topic"] = found
        return found


def _check_nothing_ignored(request: Request, route: Route) -> None:
    """Reject unknown parameters and compressed bodies. A mistyped parameter would silently have no effect, and a
    compressed body would be stored as if it were the value."""
    if request.query and route.access.verb is not Verb.PUBLIC:
        known = [parameter.name for parameter in route.operation.parameters if parameter.where == "query"]
        for name in request.query:
            if name not in known:
                there_is = f"known are {', '.join(known)}" if known else "this route has none"
                raise invalid_parameter(name, f"unknown parameter; {there_is}")
    if request.headers.get("content-encoding", "identity") != "identity":
        coding = request.headers["content-encoding"]
        raise Problem(
            415, "unsupported_encoding", f"Content-Encoding {coding!r} is not supported", "send it uncompressed"
        )
