"""Assign replicas to brokers. Pure and deterministic: the same input has the same result on every broker.

- The replicas of a partition are on different brokers, and in as many racks as possible. A broker without a rack counts
  as a rack of its own.
- Within this constraint, the numbers of replicas per broker differ as little as possible, and so do the numbers of
  preferred leaders (first replicas).
- `place_replicas` assigns new partitions. `balance_replicas` moves existing ones, and as few as possible.
  `resize_replicas` changes their number of replicas.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from headrace.model.errors import InvalidReplicationFactor
from headrace.model.registry_records import BrokerRecord, Nodes

Key = TypeVar("Key", bound=Hashable)
_Chains = dict[int, list[tuple[Key, int, int]]]


def place_replicas(
    partitions: int,
    replication: int,
    brokers: Mapping[int, BrokerRecord],
    load: Mapping[int, int],
    leaders: Mapping[int, int],
) -> list[Nodes]:
    """Return the replicas of each new partition. `load` and `leaders` count the replicas and first replicas per
    broker."""
    _check_replication(replication, brokers)
    loads = _BrokerLoads(brokers)
    for node_id in brokers:
        loads.count(node_id, load.get(node_id, 0))
        loads.leaders[node_id] = leaders.get(node_id, 0)
    return [*loads.led({index: loads.filled((), replication) for index in range(partitions)}).values()]


def balance_replicas(current: Mapping[Key, Nodes], brokers: Mapping[int, BrokerRecord]) -> dict[Key, Nodes]:
    """Return the partitions that must move, with their new replicas, so that all replicas are evenly on these brokers.
    A partition moves to fewer racks only if the removal of a broker requires it."""
    loads = _BrokerLoads(brokers)
    target = {
        key: tuple(node_id for node_id in current[key] if node_id in brokers) for key in _bit_reversed_order([*current])
    }
    for nodes in target.values():
        for node_id in nodes:
            loads.count(node_id, 1)
    for key, nodes in target.items():
        _check_replication(len(current[key]), brokers)
        target[key] = loads.filled(nodes, len(current[key]))
    _balance_new_replicas(current, target, loads)
    _balance_load(target, loads)
    moved = {key for key, nodes in target.items() if {*nodes} != {*current[key]}}
    loads.leaders.update(nodes[0] for key, nodes in current.items() if key not in moved)
    return loads.led({key: target[key] for key in current if key in moved})


def resize_replicas(
    current: Mapping[Key, Nodes], replication: int, brokers: Mapping[int, BrokerRecord], others: Iterable[Nodes] = ()
) -> dict[Key, Nodes]:
    """Return the partitions that do not have this number of replicas, with their new replicas. `others` are the
    replicas of all other partitions.

    Existing replicas on these brokers stay, the first one always. If there are too many, a replica is removed that
    shares its rack with another one, or else one on a broker with many replicas."""
    _check_replication(replication, brokers)
    loads = _BrokerLoads(brokers)
    resized = {
        key: tuple(node_id for node_id in nodes if node_id in brokers)
        for key, nodes in current.items()
        if len(nodes) != replication
    }
    unchanged = [nodes for key, nodes in current.items() if key not in resized]
    for nodes in (*others, *unchanged, *resized.values()):
        for node_id in nodes:
            if node_id in brokers:
                loads.count(node_id, 1)
    for key, nodes in resized.items():
        resized[key] = loads.filled(loads.reduced(nodes, replication), replication)
    stays = {key for key, nodes in resized.items() if nodes[0] == current[key][0]}
    loads.leaders.update(nodes[0] for nodes in (*others, *unchanged, *(resized[key] for key in stays)))
    return resized | loads.led({key: nodes for key, nodes in resized.items() if key not in stays})


def _balance_new_replicas(current: Mapping[Key, Nodes], target: dict[Key, Nodes], loads: _BrokerLoads) -> None:
    """Exchange new replicas along chains of brokers until the load is even, or only moves of existing replicas can make
    it even."""
    new: dict[int, dict[Key, None]] = {node_id: {} for node_id in loads.load}
    for key, nodes in target.items():
        for node_id in nodes:
            if node_id not in current[key]:
                new[node_id][key] = None

    while (chain := _next_chain(target, new, loads)) is not None:
        for key, giver, taker in chain:
            loads.move(target, key, giver, taker)
            del new[giver][key]
            new[taker][key] = None


def _next_chain(
    target: Mapping[Key, Nodes], new: Mapping[int, Mapping[Key, None]], loads: _BrokerLoads
) -> list[tuple[Key, int, int]] | None:
    """Return moves of new replicas that take one replica off a broker and give one to a broker with at least two
    fewer."""

    def moves(giver: int, chains: _Chains[Key]) -> Iterator[tuple[Key, int]]:
        for key in new[giver]:
            if len(chains) == len(loads.load):
                return
            if not any(key == moved for moved, _, _ in chains[giver]):
                for taker in loads.load:
                    if taker not in chains and loads.may_move(target[key], giver, taker):
                        yield key, taker

    return _shortest_chain(loads.load, moves)


def _shortest_chain(
    counts: Mapping[int, int], moves: Callable[[int, _Chains[Key]], Iterable[tuple[Key, int]]]
) -> list[tuple[Key, int, int]] | None:
    """Return moves, as (partition, from, to), that lead from a broker to one with at least two fewer, or None. `moves`
    returns those from a broker, given the chains to the brokers that were already reached."""
    lowest = min(counts.values())
    for first in sorted(counts, key=lambda node_id: -counts[node_id]):
        if counts[first] - lowest < 2:
            break
        chains: _Chains[Key] = {first: []}
        queue = deque([first])
        while queue:
            giver = queue.popleft()
            if counts[first] - counts[giver] >= 2:
                return chains[giver]
            for key, taker in moves(giver, chains):
                if taker not in chains:
                    chains[taker] = [*chains[giver], (key, giver, taker)]
                    queue.append(taker)
    return None


def _balance_load(target: dict[Key, Nodes], loads: _BrokerLoads) -> None:
    """Move replicas from the fullest to the emptiest broker. Each move lowers the sum of squares, so this
    terminates."""
    candidates = _Candidates(target, loads)

    def next_move() -> tuple[Key, int, int] | None:
        by_load = sorted(loads.load, key=lambda node_id: (loads.load[node_id], node_id))
        for giver in reversed(by_load):
            for taker in by_load:
                if loads.load[giver] - loads.load[taker] < 2:
                    break
                key = candidates.take(giver, taker)
                if key is not None:
                    return key, giver, taker
        return None

    while (move := next_move()) is not None:
        loads.move(target, *move)
        candidates.update(move[0])


class _Candidates(Generic[Key]):
    """The partitions that may move from one broker to another, for each pair of brokers.

    Whether a partition may move depends on its own replicas only. So a partition that may not move is not examined
    again before its replicas change; otherwise the time would grow with the square of the number of partitions.
    """

    def __init__(self, target: Mapping[Key, Nodes], loads: _BrokerLoads) -> None:
        self._target = target
        self._loads = loads
        self._changes = dict.fromkeys(target, 0)  # how often the replicas of a partition have changed
        self._queues: dict[tuple[int, int], deque[tuple[Key, int]]] = {}
        for giver in loads.load:
            held = [(key, 0) for key, nodes in target.items() if giver in nodes]
            self._queues.update(((giver, taker), deque(held)) for taker in loads.load if taker != giver)

    def take(self, giver: int, taker: int) -> Key | None:
        """Return the next partition that may move, or None. The caller moves it and calls `update`."""
        queue = self._queues[giver, taker]
        while queue:
            key, change = queue.popleft()
            if change == self._changes[key] and self._loads.may_move(self._target[key], giver, taker):
                return key
        return None

    def update(self, key: Key) -> None:
        """Examine a partition again, because its replicas have changed: behind all others, so that another partition
        moves next if possible."""
        self._changes[key] += 1
        for giver in self._target[key]:
            for taker in self._loads.load:
                if taker != giver:
                    self._queues[giver, taker].append((key, self._changes[key]))


class _BrokerLoads:
    def __init__(self, brokers: Mapping[int, BrokerRecord]) -> None:
        self.load: dict[int, int] = dict.fromkeys(sorted(brokers), 0)
        self.leaders: Counter[int] = Counter()
        self._rack: dict[int, str | int] = {
            node_id: node_id if broker.rack is None else broker.rack for node_id, broker in brokers.items()
        }
        self._rack_size = Counter(self._rack.values())
        self._rack_load: Counter[str | int] = Counter()
        self._together: Counter[tuple[int, int]] = Counter()

    def count(self, node_id: int, replicas: int) -> None:
        self.load[node_id] += replicas
        self._rack_load[self._rack[node_id]] += replicas

    def move(self, target: dict[Key, Nodes], key: Key, giver: int, taker: int) -> None:
        target[key] = tuple(taker if node_id == giver else node_id for node_id in target[key])
        self.count(giver, -1)
        self.count(taker, 1)

    def filled(self, nodes: Nodes, replication: int) -> Nodes:
        """Add replicas to `nodes` up to the replication factor, and count them."""
        while len(nodes) < replication:
            best = self._best_broker(nodes)
            self.count(best, 1)
            self._together.update(pair for node_id in nodes for pair in ((node_id, best), (best, node_id)))
            nodes += (best,)
        return nodes

    def reduced(self, nodes: Nodes, replication: int) -> Nodes:
        """Remove replicas from `nodes` down to the replication factor, but not the first, and discount them."""
        while len(nodes) > replication:
            racks = Counter(self._rack[node_id] for node_id in nodes)
            worst = max(nodes[1:], key=partial(self._crowding, racks))
            self.count(worst, -1)
            nodes = tuple(node_id for node_id in nodes if node_id != worst)
        return nodes

    def led(self, target: Mapping[Key, Nodes]) -> dict[Key, Nodes]:
        """Reorder the replicas so that the brokers are first replicas as evenly as possible."""
        led = {}
        for key, nodes in target.items():
            leader = min(nodes, key=lambda node_id: self.leaders[node_id])
            self.leaders[leader] += 1
            led[key] = _with_leader_first(leader, nodes)
        while (path := self._path(led)) is not None:
            for key, _, leader in path:
                self.leaders[led[key][0]] -= 1
                self.leaders[leader] += 1
                led[key] = _with_leader_first(leader, led[key])
        return led

    def may_move(self, nodes: Nodes, giver: int, taker: int) -> bool:
        if taker in nodes:
            return False
        others = {self._rack[node_id] for node_id in nodes if node_id != giver}
        return self._rack[taker] not in others or self._rack[giver] in others

    def _path(self, led: Mapping[Key, Nodes]) -> list[tuple[Key, int, int]] | None:
        """Return a chain of leadership transfers from a broker to one with at least two fewer leaderships, or None. The
        chain passes through other brokers if the two share no partition."""
        led_by: dict[int, list[Key]] = {node_id: [] for node_id in self.load}
        for key, nodes in led.items():
            led_by[nodes[0]].append(key)
        leaders = {node_id: self.leaders[node_id] for node_id in self.load}
        return _shortest_chain(leaders, lambda node_id, _: ((key, one) for key in led_by[node_id] for one in led[key]))

    def _best_broker(self, nodes: Nodes) -> int:
        """Return the best broker for another replica. The rack is chosen before the broker: otherwise all brokers with
        little load would soon be in one rack. Brokers that already share many partitions are avoided, so that the load
        of a failed broker spreads over many others."""
        racks = Counter(self._rack[node_id] for node_id in nodes)

        def rank(node_id: int) -> tuple[float, ...]:
            return (
                *self._crowding(racks, node_id),
                sum(self._together[node_id, other] for other in nodes),
                self.leaders[node_id],
            )

        return min((node_id for node_id in self.load if node_id not in nodes), key=rank)

    def _crowding(self, racks: Mapping[str | int, int], node_id: int) -> tuple[float, ...]:
        """Rank a broker by the partition's replicas in its rack, then by the load of the rack and of the broker."""
        rack = self._rack[node_id]
        return racks[rack], self._rack_load[rack] / self._rack_size[rack], self.load[node_id]


def _with_leader_first(leader: int, nodes: Nodes) -> Nodes:
    return (leader, *(node_id for node_id in nodes if node_id != leader))


def _bit_reversed_order(keys: Sequence[Key]) -> list[Key]:
    """Return the keys in the order of their reversed binary indexes, which separates neighbours: the first keys include
    some of every topic."""
    return [keys[index] for index in sorted(range(len(keys)), key=lambda index: f"{index:032b}"[::-1])]


def _check_replication(replication: int, brokers: Mapping[int, BrokerRecord]) -> None:
    if not 1 <= replication <= len(brokers):
        raise InvalidReplicationFactor(
            f"the replication factor {replication} is not between 1 and {len(brokers)}, the number of usable brokers"
        )
