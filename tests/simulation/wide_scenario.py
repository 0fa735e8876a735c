"""The cluster simulation with features: each seed draws a few, with their own topics, clients, faults and rules.

The clients of every scenario also work, but fewer of them, so that a seed stays cheap. Some seeds draw no feature. A
feature about broken storage is drawn from a separate random stream, so that seeds without one do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.features.bit_flips import BitFlips
from tests.simulation.features.clocks import Clocks
from tests.simulation.features.config_changes import ConfigChanges
from tests.simulation.features.dedup import Dedup
from tests.simulation.features.delays import Delays
from tests.simulation.features.failing_syncs import FailingSyncs
from tests.simulation.features.feature import Feature
from tests.simulation.features.groups import Groups
from tests.simulation.features.lagging_registry import LaggingRegistry
from tests.simulation.features.lost_folders import LostFolders
from tests.simulation.features.lost_responses import LostAnswers
from tests.simulation.features.queue import Queue
from tests.simulation.features.retention import Retention
from tests.simulation.features.rolled_back_registry import RolledBackRegistry
from tests.simulation.features.trailing_gap import TrailingGap
from tests.simulation.features.unclean import Unclean
from tests.simulation.features.unwritable_dead_letters import UnwritableDeadLetters

FEATURES: tuple[type[Feature], ...] = (
    Clocks,
    LostAnswers,
    LaggingRegistry,
    Retention,
    Queue,
    Unclean,
    Dedup,
    Delays,
    Groups,
)
STORAGE_FEATURES: tuple[type[Feature], ...] = (BitFlips, FailingSyncs, LostFolders)
STORAGE_CHANCE = 0.25
ADMIN_FEATURES: tuple[type[Feature], ...] = (RolledBackRegistry,)
"""Features that operate on a whole cluster."""
ADMIN_CHANCE = 0.17
DIRECTED_FEATURES: tuple[type[Feature], ...] = (UnwritableDeadLetters, TrailingGap, ConfigChanges)
"""Features that create one rare situation on purpose."""
DIRECTED_CHANCE = 0.15
COUNTS = (0, 1, 1, 2, 2, 2, 3)
LEFT_OUT_CHANCE = 0.6


def features_of(seed: int) -> list[type[Feature]]:
    random = Random(f"features {seed}")
    drawn = set(random.sample(FEATURES, random.choice(COUNTS)))
    if Delays in drawn:
        drawn.discard(Clocks)  # clocks decide when a delayed message is due
    storage = _one_of(STORAGE_FEATURES, STORAGE_CHANCE, f"storage draw {seed}")
    admin = _one_of(ADMIN_FEATURES, ADMIN_CHANCE, f"admin draw {seed}")
    # With a slow registry, a start takes up to 20 s, which is too long for features that restart all brokers
    # repeatedly. An older copy of the registry may not know which replica was damaged.
    if storage or LaggingRegistry in drawn:
        admin = []
    # Directed features stop brokers at any time, so they are not combined with features that also do, or that depend
    # on running brokers.
    directed = _one_of(DIRECTED_FEATURES, DIRECTED_CHANCE, f"directed draw {seed}")
    if storage or admin or LaggingRegistry in drawn:
        directed = []
    return [kind for kind in FEATURES if kind in drawn] + storage + admin + directed


def _one_of(features: Sequence[type[Feature]], chance: float, stream: str) -> list[type[Feature]]:
    """Draw from a separate random stream, so that these features do not change what a seed draws from `FEATURES`."""
    random = Random(stream)
    return [random.choice(features)] if random.random() < chance else []


class WideScenario(ClusterScenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        if self.features:
            self._leave_out()
        for feature in self.features:
            feature.attach()
            self.clients += feature.clients

    def draw_features(self) -> list[Feature]:
        return [kind(self) for kind in features_of(self.seed)]

    def _leave_out(self) -> None:
        """Remove some of the clients that every scenario has, but keep one writer."""
        random = Random(f"left out {self.seed}")
        kept = [self.watcher, random.choice(self.writers)]
        self.clients = [one for one in self.clients if one in kept or random.random() > LEFT_OUT_CHANCE]
        self.writers = [one for one in self.writers if one in self.clients]
        self.members = [one for one in self.members if one in self.clients]
        self.followers = [one for one in self.followers if one in self.clients]
        self.operators = [one for one in self.operators if one in self.clients]
