"""Two leaders have written in one leader epoch, because the registry was set back to an older copy in between."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.town import Town, in_town

from headrace.model.errors import StorageFailure
from headrace.registry.interface import Entry
from headrace.storage.stray import stray_logs


def back_up(town: Town) -> dict[str, Entry]:
    return {key: one for key, one in town.truth.entries.items() if not key.startswith(("/live", "/controller"))}


def restore(town: Town, backup: Mapping[str, Entry]) -> None:
    """While all brokers are down."""
    town.truth.entries.clear()
    town.truth.entries.update(backup)
    town.forget_controllers()


async def roll_back(town: Town) -> None:
    """Broker 2 writes in an epoch that is in no backup, and stops. Broker 1 was down meanwhile; it leads in the same
    epoch on the older registry, and writes something else."""
    await town.make_topic("t")
    await produce(town[1], "t", b"both")
    await town.until_alike("t")
    await town[1].close()
    backup = back_up(town)
    await town.until_led("t", 2)
    await produce(town[2], "t", b"before-1")
    await produce(town[2], "t", b"before-2")
    await town[2].close()
    restore(town, backup)
    await town.open(1)
    await town.until_led("t", 1)
    await produce(town[1], "t", b"after")


@in_town(2)
async def test_a_log_with_another_history_is_kept_as_stray_and_copied_again(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await roll_back(town)
    with caplog.at_level(logging.WARNING):
        await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    await town.move_lead("t", 2)
    assert await read_all(town[2], "t") == [b"both", b"after"]
    assert [one.key for one in stray_logs(town[2].host.disk, "/data")] == [town.replica(2, "t").log.key]
    assert "another history" in caplog.text


@in_town(2)
async def test_a_broker_that_was_down_while_others_led_keeps_its_log(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    await town[1].close()
    await town.until_led("t", 2)
    await produce(town[2], "t", b"b")
    for _ in range(3):
        await town[2].close()
        await town.open(2)
    await town.open(1)
    await town.until_in_sync("t")
    assert stray_logs(town[1].host.disk, "/data") == []
    assert await read_all(await town.until_led("t"), "t") == [b"a", b"b"]


@in_town(2)
async def test_a_damaged_file_of_known_leaders_says_what_to_do(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town[2].close()
    town[2].host.disk.write_atomically("/data/known-leaders", b"{")
    with pytest.raises(StorageFailure, match=r"known-leaders is damaged.*remove it.*registry rebuild"):
        await town.open(2)
