"""Negative controls of the features that administer a whole cluster.

A seed that draws the feature must find the bug. `Control` notes the first such seed; `python -m tests.simulation.many
--seeds 1-2000 --controls` searches for it again.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import pytest
from tests.simulation.features.rolled_back_registry import RolledBackRegistry
from tests.simulation.regression_controls import Control

from headrace.broker import broker
from headrace.broker.cluster import cluster_member as cluster
from headrace.registry.counters import ProducerIds
from headrace.registry.topics import TopicRecords


def trust_an_older_registry(patch: pytest.MonkeyPatch) -> None:
    """A broker that starts with an older registry reuses leader epochs and producer ids that its logs contain."""

    async def trust(*_: object) -> None:
        pass

    patch.setattr(broker, "raise_older_registry", trust)
    begin = ProducerIds.__init__
    patch.setattr(ProducerIds, "__init__", lambda self, registry, *_, **__: begin(self, registry))


def delete_unknown_logs(patch: pytest.MonkeyPatch) -> None:
    """A broker deletes a log if the registry does not know its topic, as it did before decision 024."""

    async def deleted(_self: TopicRecords, topic_ids: Collection[UUID]) -> set[UUID]:
        return set(topic_ids)

    patch.setattr(TopicRecords, "deleted", deleted)


def keep_diverged_logs(patch: pytest.MonkeyPatch) -> None:
    """A broker keeps using a log in whose latest leader epochs another leader wrote different records."""

    async def keep(*_: object) -> None:
        pass

    patch.setattr(cluster, "set_aside_foreign_logs", keep)


ADMIN_CONTROLS = (
    Control(trust_an_older_registry, RolledBackRegistry, "(I11)", 10),
    Control(delete_unknown_logs, RolledBackRegistry, "log deleted", 24),
    Control(keep_diverged_logs, RolledBackRegistry, "diverged", 161),
)
