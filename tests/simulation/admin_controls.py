"""Bugs for the features that administer a cluster: each must be found by a seed that draws the feature.

Noted as in finding_controls. `python -m tests.simulation.many --seeds 1-2000 --controls` looks for them anew.
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
    """Leader epochs that logs hold are used again, and so are producer ids."""

    async def trust(*_: object) -> None:
        pass

    patch.setattr(broker, "raise_older_registry", trust)
    begin = ProducerIds.__init__
    patch.setattr(ProducerIds, "__init__", lambda self, registry, *_, **__: begin(self, registry))


def delete_unknown_logs(patch: pytest.MonkeyPatch) -> None:
    """As before decision 024: a log is deleted if the registry does not know its topic."""

    async def deleted(_self: TopicRecords, topic_ids: Collection[UUID]) -> set[UUID]:
        return set(topic_ids)

    patch.setattr(TopicRecords, "deleted", deleted)


def keep_foreign_logs(patch: pytest.MonkeyPatch) -> None:
    """A broker goes on with a log of which another leader has written the last epochs too."""

    async def keep(*_: object) -> None:
        pass

    patch.setattr(cluster, "set_aside_foreign_logs", keep)


ADMIN_CONTROLS = (
    Control(trust_an_older_registry, RolledBackRegistry, "(I11)", 10),
    Control(delete_unknown_logs, RolledBackRegistry, "log deleted", 24),
    Control(keep_foreign_logs, RolledBackRegistry, "diverged", 161),
)
