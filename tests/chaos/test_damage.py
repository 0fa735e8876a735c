"""Unit tests for damage: only flushed data is damaged, and only a quarantine and a repair are accepted."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack

import pytest
from tests.chaos.damage import BATCHES_MIN, Damage, check, damage_one
from tests.chaos.namespaces import Host
from tests.chaos.nodes import BrokerNode

BATCH = pack(">qi", 0, 88) + bytes(88)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "logs" / "00-0"
    folder.mkdir(parents=True)
    (folder / "0.log").write_bytes(BATCH * 2 * BATCHES_MIN)
    return folder


@pytest.fixture
def broker(tmp_path: Path) -> BrokerNode:
    node = BrokerNode("b1", Host("b1", "127.0.0.1"), tmp_path)
    node.log_path.write_text("started\n")
    return node


def damaged(broker: BrokerNode, log: Path, seed: int = 1) -> Damage:
    damage = damage_one(broker, [log], random.Random(seed))
    assert damage is not None
    return damage


def log_quarantine(broker: BrokerNode, logger: str, log: Path) -> None:
    with broker.log_path.open("a") as file:
        file.write(f"2026-11-18 08:00:00,000 ERROR {logger} log is quarantined log={log} damage=CRC\n")


def test_one_byte_of_the_first_half_changes_and_never_a_leader_epoch(broker: BrokerNode, log: Path) -> None:
    path = log / "0.log"
    sound = path.read_bytes()
    for seed in range(100):
        damage = damaged(broker, log, seed)
        changed = [at for at, (was, now) in enumerate(zip(sound, path.read_bytes(), strict=True)) if was != now]
        assert changed == [damage.position]
        assert damage.position < len(sound) // 2
        assert damage.position % len(BATCH) not in range(12, 16)
        path.write_bytes(sound)


def test_a_short_log_is_left_alone(broker: BrokerNode, log: Path) -> None:
    (log / "0.log").write_bytes(BATCH * (BATCHES_MIN - 1))
    assert damage_one(broker, [log], random.Random(1)) is None


def test_damage_that_stays_or_vanishes_without_quarantine_is_a_violation(broker: BrokerNode, log: Path) -> None:
    damage = damaged(broker, log)
    (never,) = check([damage])
    assert "never repaired" in never
    (log / "0.log").write_bytes(b"")
    (silent,) = check([damage])
    assert "not quarantined" in silent


def test_a_log_that_was_quarantined_and_copied_again_is_fine(broker: BrokerNode, log: Path) -> None:
    damage = damaged(broker, log)
    log_quarantine(broker, "headrace.storage.log.log", log)
    assert damage.is_found_while_running
    log_quarantine(broker, "headrace.storage.log.recovery", log)
    assert damage.is_quarantined
    assert not damage.is_found_while_running
    (log / "0.log").write_bytes(BATCH * 2 * BATCHES_MIN)
    assert check([damage]) == []


def test_a_log_that_was_moved_away_is_fine(broker: BrokerNode, log: Path) -> None:
    damage = damaged(broker, log)
    damage.is_moved = True
    (log / "0.log").write_bytes(BATCH)  # replicated again after the partition was moved back
    assert check([damage]) == []
