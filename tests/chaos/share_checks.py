"""Check the history of a Kafka share group, after all its records were acknowledged. Pure.

The rules of queues apply to records that were lost, duplicated, never delivered or delivered after a confirmed accept
or reject, and to dead letters. Those of leases do not: a share consumer does not learn when its locks end. In addition:

- A released record is delivered again, until it reaches the delivery limit, and never beyond it.
- The delivery count of a record grows with each confirmed release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tests.chaos.checks import first_few
from tests.chaos.queue_checks import (
    SLACK_MS,
    dead_letters_are_wrong,
    delivered_after_it_was_settled,
    never_settled,
    queue_log_is_wrong,
)
from tests.chaos.queue_client import DELIVERIES_MAX, NACK, STUBBORN
from tests.chaos.queue_history import Delivery, QueueHistory


def check_share_group(history: QueueHistory) -> list[str]:
    """Apply all rules; return the first sentences of each."""
    return [sentence for rule in RULES for sentence in first_few(rule(history), rule.__name__.replace("_", " "))]


def delivered_beyond_the_limit(history: QueueHistory) -> list[str]:
    return [
        f"beyond the delivery limit: {one.value!r}, {one.id}, was delivered to {one.client} with count {one.attempt}"
        for one in history.deliveries
        if one.attempt > DELIVERIES_MAX
    ]


def died_before_the_limit(history: QueueHistory) -> list[str]:
    """No member rejects a stubborn record. `dead_letters_are_wrong` checks ordinary records."""
    return [
        f"died before the delivery limit: {one.value!r}, {one.origin}, after {one.attempts} deliveries"
        for one in history.dead
        if one.value.startswith(f"{STUBBORN} ") and one.attempts < DELIVERIES_MAX
    ]


def delivery_count_went_back(history: QueueHistory) -> list[str]:
    """A confirmed release is durable: a delivery granted later has a higher count, whichever broker leads."""
    by_id = defaultdict[str, list[Delivery]](list)
    for one in history.deliveries:
        by_id[one.id].append(one)
    return [
        f"delivery count went back: {one.value!r}, {one.id}, was delivered with count {one.attempt} "
        f"{one.granted - release.settled} ms after its release at count {release.attempt} was confirmed"
        for release in history.deliveries
        if release.how == NACK and release.settled is not None
        for one in by_id[release.id]
        if one.granted > release.settled + SLACK_MS and one.attempt <= release.attempt
    ]


RULES: tuple[Callable[[QueueHistory], list[str]], ...] = (
    queue_log_is_wrong,
    never_settled,
    delivered_after_it_was_settled,
    dead_letters_are_wrong,
    delivered_beyond_the_limit,
    died_before_the_limit,
    delivery_count_went_back,
)
