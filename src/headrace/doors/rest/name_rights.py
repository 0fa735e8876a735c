"""A subscription's configuration belongs to its name, and holds in all topics that have a subscription of that name.

So whoever makes or configures one must be allowed to manage all of these topics. Else one who manages a topic of his
own could, by a subscription of the right name, have the messages of another topic sent to his webhook.
"""

from __future__ import annotations

from headrace.client.errors import SubscriptionNotFound
from headrace.client.subscription_admin import SubscriptionAdmin
from headrace.doors.rest.access import Caller
from headrace.http.routes import Verb


async def require_name(caller: Caller, admin: SubscriptionAdmin, name: str) -> None:
    """Raises `Problem` 403, which names the first scope that is missing."""
    if caller.may(Verb.MANAGE, None):
        return
    try:
        backlogs = await admin.describe(name)
    except SubscriptionNotFound:
        return
    for topic in sorted({backlog.target.topic for backlog in backlogs}):
        caller.require(Verb.MANAGE, topic)
