"""Find the topic of a subscription, for paths that contain only the subscription.

Results are cached for some seconds; a component that finds a cached result to be outdated calls `forget`. Negative
results are not cached, because the subscription may be created at any time. Concurrent lookups of one name share one
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import SubscriptionNotFound
from headrace.http.problems import Problem
from headrace.http.routes import Parameter
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.supervise import Supervisor

_KEPT_SECONDS = 10.0
_KEPT_MAX = 10_000

TOPIC_PARAMETER = Parameter("topic", str, "The topic, if several topics have a subscription of this name.")

_TopicQuery = tuple[str, str | None]


class SubscriptionDirectory:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = SubscriptionAdmin(cluster)
        self._topics: dict[_TopicQuery, tuple[Sequence[str], float]] = {}
        self._pending_queries: dict[_TopicQuery, asyncio.Task[Sequence[str] | Exception]] = {}
        self._tasks = Supervisor()

    async def topic_of(
        self, name: str, hint: str | None = None, may_use: Callable[[str], bool] = lambda _topic: True
    ) -> str:
        """Return the topic of the subscription, among those that the client may use; with a hint, only that topic.
        Raise `Problem` 404, or 409 if there are several and no hint."""
        topics = [topic for topic in await self._topics_of((name, hint)) if may_use(topic)]
        if not topics:
            where = "" if hint is None else f" of topic {hint!r}"
            raise Problem(
                404,
                "subscription_not_found",
                f"subscription {name!r}{where} does not exist",
                "POST /topics/{topic}/subscriptions creates one, GET lists them",
            )
        if len(topics) > 1:
            raise Problem(
                409,
                "subscription_ambiguous",
                f"{len(topics)} topics have a subscription {name!r}: {', '.join(topics[:10])}",
                "specify the topic with ?topic=",
            )
        return topics[0]

    async def _topics_of(self, query: _TopicQuery) -> Sequence[str]:
        found = self._topics.get(query)
        if found is not None and self._cluster.clock.monotonic() - found[1] < _KEPT_SECONDS:
            return found[0]
        await switch_to_task()
        task = self._pending_queries.get(query)
        if task is None:
            task = self._pending_queries[query] = self._tasks.spawn(self._run_query(query), f"topics of {query[0]}")
        found_topics = await asyncio.shield(task)
        if isinstance(found_topics, Exception):
            raise found_topics
        return found_topics

    def forget(self, name: str) -> None:
        for query in [query for query in self._topics if query[0] == name]:
            del self._topics[query]

    async def _run_query(self, query: _TopicQuery) -> Sequence[str] | Exception:
        """Return the result, or the exception to raise in all waiting lookups."""
        try:
            topics = await self._find(*query)
        except Exception as error:
            return error
        finally:
            del self._pending_queries[query]
        if len(self._topics) >= _KEPT_MAX:
            self._topics.clear()
        if topics:
            self._topics[query] = (topics, self._cluster.clock.monotonic())
        return topics

    async def _find(self, name: str, hint: str | None) -> Sequence[str]:
        try:
            backlogs = await self._admin.describe(name, None if hint is None else [hint])
        except SubscriptionNotFound:
            return ()
        return sorted({backlog.target.topic for backlog in backlogs})
