"""The REST application: finds the route of a request, asks who sends it and whether they may, and lets it be handled.

    head complete: route (404, 405) -> who (401, 429) -> of which topic (404, 409) -> whether they may (403)
                   -> what is not understood (415, 422)
    body complete: if it came later than the head, the same again -> handler

So a body is read only for a caller who may send it, and carried out only for one who still may.

Every refusal ends as a problem with a stable code; what is neither is a bug, and the listener answers it.
"""

from __future__ import annotations

from functools import partial

from headrace.client.cluster import Cluster
from headrace.doors.rest.access import ANYBODY, Gatekeeper, OpenGatekeeper
from headrace.doors.rest.bodies import invalid
from headrace.doors.rest.problems import problem_of
from headrace.doors.rest.rechecks import rechecked
from headrace.doors.rest.table import Doors, routes
from headrace.doors.rest.webhooks import StatusOf
from headrace.http.message import Answer, Request, Response
from headrace.http.problem import Problem
from headrace.http.routes import Access, Route, Routes, Side, Subject, Verb
from headrace.model.errors import HeadraceError

ALL_SIDES = frozenset({Side.PUBLISH, Side.SUBSCRIBE})
BODY_BYTES_MAX = 1 << 20
"""Of routes that take a body and say nothing else."""
_METRICS = Access(Verb.METRICS, Subject.CLUSTER)
_KEPT_MAX, _KEPT_LENGTH_MAX = 1024, 256


class RestApplication:
    """`sides`: of which forwarder the routes are served. Close it when its listener is drained."""

    def __init__(
        self,
        cluster: Cluster,
        gatekeeper: Gatekeeper,
        sides: frozenset[Side] = ALL_SIDES,
        *,
        status_of: StatusOf = lambda *_: None,
        with_auth: bool = False,
    ) -> None:
        self.cluster = cluster
        self.doors = Doors(cluster, status_of, gatekeeper.is_still_welcome, with_auth=with_auth)
        table = [route for route in routes(self.doors) if route.side is Side.BOTH or route.side in sides]
        self.doors.described.extend(table)
        self.routes = Routes(table)
        self._gatekeeper = gatekeeper
        self._is_open = isinstance(gatekeeper, OpenGatekeeper)  # then nobody need be asked for every request
        self._found: dict[tuple[str, str], tuple[Route, dict[str, str]]] = {}

    def body_limit(self, method: str, path: str) -> int:
        """0 for a route that takes no body: all public ones are such, so no body is kept for a caller without a
        token."""
        try:
            route, _ = self._find(method, path)
        except Problem:
            return BODY_BYTES_MAX  # `admit` refuses it, and a short body is read and dropped
        return 0 if route.operation.body is None else route.body_bytes_max or BODY_BYTES_MAX

    async def admit(self, request: Request) -> None:
        """Raises `Problem` unless the head names a route that its caller may use."""
        route, params = self._find(request.method, request.path)
        request.params = params.copy()  # handlers add to them
        try:
            await self._check_access(request, route.access)
        except HeadraceError as error:
            raise problem_of(error) from None
        _refuse_what_would_be_ignored(request, route)

    async def admit_metrics(self, request: Request) -> None:
        """Raises `Problem` unless the caller may read the metrics, which name all topics and subscriptions."""
        try:
            await self._check_access(request, _METRICS)
        except HeadraceError as error:
            raise problem_of(error) from None

    async def answer(self, request: Request) -> Answer:
        """`admit` must have returned for this request."""
        route, _ = self._find(request.method, request.path)
        try:
            answer = await route.handle(request)
        except Problem as problem:
            return problem.response()
        except HeadraceError as error:
            return problem_of(error).response()
        if isinstance(answer, Response):
            return answer
        return rechecked(answer, partial(self._gatekeeper.is_still_welcome, request))

    async def close(self) -> None:
        """Whoever still waits is told that this server is stopping."""
        await self.doors.close()
        self.cluster.close()

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Kept, because most paths come again and again, and twice for each request."""
        found = self._found.get((method, path))
        if found is None:
            found = self.routes.find(method, path)
            if len(self._found) >= _KEPT_MAX:
                self._found.clear()
            if len(path) <= _KEPT_LENGTH_MAX:
                self._found[method, path] = found
        return found

    async def _check_access(self, request: Request, access: Access) -> None:
        if access.verb is Verb.PUBLIC:
            return
        request.caller = caller = ANYBODY if self._is_open else await self._gatekeeper.identify(request)
        topic = request.params.get("topic")
        if access.subject is Subject.SUBSCRIPTION:
            named = topic or request.query.get("topic")
            if named is not None and not self._is_open:
                self._gatekeeper.authorize(caller, access.verb, named)
            if topic is None:
                topic = await self._topic_of(request, named, access.verb)
        elif access.subject is not Subject.TOPIC:
            topic = None
        if not self._is_open:
            self._gatekeeper.authorize(caller, access.verb, topic)

    async def _topic_of(self, request: Request, named: str | None, verb: Verb) -> str:
        """A subscription is of one topic, which is looked up unless the path says it. Topics that the caller may not
        use count as if they did not exist: a refusal must not tell their names, nor their subscriptions."""
        may_use = partial(request.caller.may, verb)
        found = await self.doors.directory.topic_of(request.params["subscription"], named, may_use)
        request.params["topic"] = found
        return found


def _refuse_what_would_be_ignored(request: Request, route: Route) -> None:
    """A parameter that was mistyped would do nothing, and a body that is compressed would be kept as if it were not."""
    if request.query and route.access.verb is not Verb.PUBLIC:
        known = [parameter.name for parameter in route.operation.parameters if parameter.where == "query"]
        for name in request.query:
            if name not in known:
                there_is = f"there are {', '.join(known)}" if known else "there are none here"
                raise invalid(name, f"there is no such parameter; {there_is}")
    if request.headers.get("content-encoding", "identity") != "identity":
        coding = request.headers["content-encoding"]
        raise Problem(415, "unsupported_encoding", f"Content-Encoding {coding!r} is not understood", "send it plain")
