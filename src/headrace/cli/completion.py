"""Shell completion of the names of topics, groups and subscriptions: types of arguments and options.

The names come from the broker that the command line or the environment names. Completion is silent and gives up after a
second, so that a shell does not hang if no broker responds.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import click
from click.shell_completion import CompletionItem

from headrace.cli.options import SERVER_DEFAULT
from headrace.client.cluster import Cluster, connect
from headrace.model.errors import HeadraceError

_SECONDS = 1.0
_INTERNAL = "__"

ListNames = Callable[[Cluster, click.Context], Awaitable[Collection[str]]]


class CompletedName(click.ParamType[str]):
    """A name that the shell can complete."""

    name = "text"

    def __init__(self, list_names: ListNames) -> None:
        self._list_names = list_names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return click.STRING.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        server = ctx.params.get("server") or os.environ.get("HEADRACE_SERVER") or SERVER_DEFAULT
        logging.disable(logging.CRITICAL)
        try:
            names = asyncio.run(self._names(server, ctx))
        except (HeadraceError, OSError, ValueError):
            return []
        value = ctx.params.get(param.name or "")
        given = value if isinstance(value, tuple) else ()
        return [
            CompletionItem(name)
            for name in sorted(names)
            if name.startswith(incomplete)
            and name not in given
            and (incomplete.startswith(_INTERNAL) or not name.startswith(_INTERNAL))
        ]

    async def _names(self, server: str, ctx: click.Context) -> Collection[str]:
        async with asyncio.timeout(_SECONDS), connect(server) as cluster:
            return await self._list_names(cluster, ctx)


async def _topics(cluster: Cluster, _ctx: click.Context) -> Collection[str]:
    return (await cluster.refresh()).topics


async def _groups(cluster: Cluster, _ctx: click.Context) -> Collection[str]:
    from headrace.client.admin.group_admin import GroupAdmin

    return [listed.group for listed in await GroupAdmin(cluster).list()]


async def _subscriptions(cluster: Cluster, ctx: click.Context) -> Collection[str]:
    """Return the subscriptions of the topic that was typed before, or of all topics."""
    from headrace.client.admin.subscription_admin import SubscriptionAdmin

    topic = ctx.params.get("topic")
    backlogs = await SubscriptionAdmin(cluster).describe(None, None if topic is None else [topic])
    return {one.subscription for one in backlogs}


TOPIC = CompletedName(_topics)
GROUP = CompletedName(_groups)
SUBSCRIPTION = CompletedName(_subscriptions)
