"""A cluster's story with weather: each seed draws a few features, with their own topics, clients, faults and rules.

What every scenario has goes on besides, with fewer clients, so that a seed stays cheap. Some seeds draw no feature.
Features about broken storage are drawn apart, one at most, so that seeds without one stay as they were.
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
"""What operators do to a whole cluster."""
ADMIN_CHANCE = 0.17
DIRECTED_FEATURES: tuple[type[Feature], ...] = (UnwritableDeadLetters, TrailingGap, ConfigChanges)
"""Each brings about one situation that chance almost never does."""
DIRECTED_CHANCE = 0.15
COUNTS = (0, 1, 1, 2, 2, 2, 3)
LEFT_OUT_CHANCE = 0.6


def features_of(seed: int) -> list[type[Feature]]:
    random = Random(f"features {seed}")
    drawn = set(random.sample(FEATURES, random.choice(COUNTS)))
    if Delays in drawn:
        drawn.discard(Clocks)  # which decide when a delayed message is due
    storage = _one_of(STORAGE_FEATURES, STORAGE_CHANCE, f"storage draw {seed}")
    admin = _one_of(ADMIN_FEATURES, ADMIN_CHANCE, f"admin draw {seed}")
    # With a slow registry, a start takes up to 20 s: too long for features that restart all brokers, again and again.
    # An older copy of the registry may not know which replica was damaged.
    if storage or LaggingRegistry in drawn:
        admin = []
    # They stop brokers whenever they like: others that do, or that may not meet it, are left alone.
    directed = _one_of(DIRECTED_FEATURES, DIRECTED_CHANCE, f"directed draw {seed}")
    if storage or admin or LaggingRegistry in drawn:
        directed = []
    return [kind for kind in FEATURES if kind in drawn] + storage + admin + directed


def _one_of(features: Sequence[type[Feature]], chance: float, stream: str) -> list[type[Feature]]:
    """From a random stream of its own, so that adding these has not changed what a seed draws from `FEATURES`."""
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
        """Drop some of the clients that every scenario has, but for one writer."""
        random = Random(f"left out {self.seed}")
        kept = [self.watcher, random.choice(self.writers)]
        self.clients = [one for one in self.clients if one in kept or random.random() > LEFT_OUT_CHANCE]
        self.writers = [one for one in self.writers if one in self.clients]
        self.members = [one for one in self.members if one in self.clients]
        self.followers = [one for one in self.followers if one in self.clients]
        self.operators = [one for one in self.operators if one in self.clients]
