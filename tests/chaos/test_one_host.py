"""The parent of several brokers is started without the options of single brokers."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.namespaces import Host
from tests.chaos.one_host import ChildBroker, HostNode


def test_the_parent_gets_the_number_of_brokers_and_has_their_folders(tmp_path: Path) -> None:
    host = Host("h1", "127.0.0.1")
    parent = HostNode("h1", host, tmp_path, settings={"min.insync.replicas": "2"}, count=3)
    command = parent.command()
    assert command[command.index("--brokers") + 1] == "3"
    assert not {"--node-id", "--rack", "--registry"} & set(command)
    assert "--set=min.insync.replicas=2" in command
    child = ChildBroker("b2", host, tmp_path, number=2, parent=parent)
    assert child.data == parent.data / "broker-2"
    assert not child.is_running
