"""What the subscriptions of a broker share, whichever partitions they are of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.burials import Bury
from headrace.broker.inherited_subscriptions import InheritedSubscriptions
from headrace.machines.subscription_tally import SubscriptionTally
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import Clock


class Surroundings(NamedTuple):
    clock: Clock
    now_ms: Callable[[], int]
    chance: Callable[[], float]
    config_of: Callable[[str], SubscriptionConfig]
    tally_of: Callable[[str, str], SubscriptionTally]  # by topic and subscription
    bury: Bury
    start: Callable[..., asyncio.Task[None]]
    session_valid: Callable[[], bool]
    inherited: InheritedSubscriptions
