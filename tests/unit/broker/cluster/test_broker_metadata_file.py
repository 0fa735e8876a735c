"""The broker metadata file survives power cuts, and damage to it is reported."""

from __future__ import annotations

import pytest

from headrace.broker.cluster.membership import BrokerMetadataFile, read_broker_metadata, write_broker_metadata
from headrace.model.errors import StorageFailure
from headrace.testkit.disk import SimDisk, SimulatedPowerCut


def a_disk() -> SimDisk:
    disk = SimDisk(1)
    disk.make_directory("/data")
    return disk


def test_an_empty_folder_has_no_broker_metadata() -> None:
    assert read_broker_metadata(a_disk(), "/data") is None


def test_written_metadata_survives_a_power_cut() -> None:
    disk = a_disk()
    for epoch in (1, 2):
        write_broker_metadata(disk, "/data", BrokerMetadataFile(epoch, "c", 1))
    disk.crash()
    assert read_broker_metadata(disk.reopen(), "/data") == BrokerMetadataFile(2, "c", 1)


def test_a_power_cut_during_a_write_leaves_the_old_or_the_new_metadata() -> None:
    for operations in range(10):
        disk = a_disk()
        write_broker_metadata(disk, "/data", BrokerMetadataFile(1, "c", 1))
        disk.crash_after(operations)
        try:
            write_broker_metadata(disk, "/data", BrokerMetadataFile(2, "c", 1))
        except SimulatedPowerCut:
            assert read_broker_metadata(disk.reopen(), "/data") in (
                BrokerMetadataFile(1, "c", 1),
                BrokerMetadataFile(2, "c", 1),
            )
        else:
            return
    raise AssertionError("it takes more operations than that")


def test_the_error_for_damage_names_the_file_and_what_to_do() -> None:
    disk = a_disk()
    disk.write_atomically("/data/broker", b"{}")
    with pytest.raises(StorageFailure, match=r"/data/broker is damaged.*remove it"):
        read_broker_metadata(disk, "/data")
