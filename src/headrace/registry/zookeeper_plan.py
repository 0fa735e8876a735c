"""The address of a registry on ZooKeeper, and the translation of keys to nodes and of commits to transactions.

    zookeeper://HOST:PORT[,HOST:PORT...]/PATH                  the address
    /topics/orders        -> <root>/keys/topics/=orders        a leaf has the value; its name begins with `=`
    /topics/orders/x      -> <root>/keys/topics/orders/=x      a folder has no value and is not a key

In ZooKeeper a node requires its parents, an ephemeral node has no children, and a version counts from the creation of
the node. Therefore a key is a leaf beside the folder of the keys beneath it, and is created and deleted with the key:
ZooKeeper's version of the leaf is the version of the key.

`Delete` must verify that no keys are beneath a key. A folder that can be created does not exist; one that can be
deleted is empty. Both are reverted in the same transaction for the operations that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate

import msgspec

from headrace.model.errors import InvalidConfig
from headrace.registry.interface import Check, Create, Delete, RegistryOperation, Set

SCHEME = "zookeeper://"
DEFAULT_PORT = 2181


def parse_registry_url(text: str) -> tuple[str, str]:
    """Return the hosts with their ports, and the root path of the cluster."""
    hosts, slash, path = text.removeprefix(SCHEME).partition("/")
    names = path.split("/")
    if not text.startswith(SCHEME) or not hosts or not slash or any(name in ("", ".", "..") for name in names):
        raise InvalidConfig(
            f"'{text}' is not the address of a registry; write zookeeper://HOST:PORT[,HOST:PORT...]/PATH"
        )
    return ",".join(_parse_host(host, text) for host in hosts.split(",")), f"/{path}"


def _parse_host(text: str, url: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise InvalidConfig(f"'{text}' in '{url}' is not HOST:PORT")
    return f"{host}:{port}"


BYTES_MAX = 1_000_000
"""The maximum size of a request: ZooKeeper closes the connection without an error at 1,048,575 bytes
(jute.maxbuffer)."""

_STEP_OVERHEAD_BYTES = 64


class StepKind(Enum):
    CHECK = "check"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


class ZooKeeperStep(msgspec.Struct, frozen=True):
    """One operation of ZooKeeper. `operation` is the registry operation that it belongs to; None for the session
    check."""

    kind: StepKind
    path: str
    operation: RegistryOperation | None
    is_about_folder: bool = False
    value: bytes = b""
    version: int = -1
    is_ephemeral: bool = False


class ZooKeeperPaths:
    def __init__(self, root: str) -> None:
        self.root = root
        self.keys = f"{root}/keys"
        self.sessions = f"{root}/sessions"

    def session(self, number: int) -> str:
        return f"{self.sessions}/{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def folder(self, key: str) -> str:
        assert "/=" not in key, key
        return self.keys + key

    def leaf(self, key: str) -> str:
        parent, _, name = self.folder(key).rpartition("/")
        return f"{parent}/={name}"

    def key(self, path: str) -> str | None:
        """Return the key of a leaf; None for a folder."""
        parent, _, name = path.removeprefix(self.keys).rpartition("/")
        return f"{parent}/{name[1:]}" if name.startswith("=") else None

    def parents(self, key: str) -> Iterator[str]:
        """Return the folders that a leaf requires, outer ones first."""
        return (self.keys + folder for folder in prefixes(key)[:-1])


def prefixes(path: str) -> list[str]:
    """Return the path and those above it, outer ones first."""
    return list(accumulate(f"/{name}" for name in path[1:].split("/")))


def plan_transaction(
    paths: ZooKeeperPaths,
    operations: Sequence[RegistryOperation],
    session: str | None,
    folders: Mapping[str, Sequence[str]],
) -> list[ZooKeeperStep]:
    """Return the steps of one transaction. `folders` contains the existing folders of keys to delete: that of the key
    and those beneath it, outer ones first."""
    steps = [] if session is None else [ZooKeeperStep(StepKind.CHECK, session, None, version=0)]
    for operation in operations:
        steps.extend(_steps_of(paths, operation, folders))
    return steps


def size_of(steps: Sequence[ZooKeeperStep]) -> int:
    """Return an upper bound of the size of the transaction on the wire."""
    return sum(_STEP_OVERHEAD_BYTES + len(step.path.encode()) + len(step.value) for step in steps)


def _steps_of(
    paths: ZooKeeperPaths, operation: RegistryOperation, folders: Mapping[str, Sequence[str]]
) -> Iterator[ZooKeeperStep]:
    leaf = paths.leaf(operation.key)
    match operation:
        case Check(_, version):
            yield ZooKeeperStep(StepKind.CHECK, leaf, operation, version=version)
        case Create(_, value, session):
            yield ZooKeeperStep(StepKind.CREATE, leaf, operation, value=value, is_ephemeral=session is not None)
        case Set(_, value, version):
            yield ZooKeeperStep(StepKind.SET, leaf, operation, value=value, version=version)
        case Delete(key, version):
            yield ZooKeeperStep(StepKind.DELETE, leaf, operation, version=version)
            there = folders.get(key, ())
            if not there:
                yield ZooKeeperStep(StepKind.CREATE, paths.folder(key), operation, is_about_folder=True)
            for folder in reversed(there or [paths.folder(key)]):
                yield ZooKeeperStep(StepKind.DELETE, folder, operation, is_about_folder=True)
            for folder in there:
                yield ZooKeeperStep(StepKind.CREATE, folder, operation, is_about_folder=True)
