"""Keys as ZooKeeper's nodes, commits as its transactions, and how a registry there is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidConfig
from headrace.registry.interface import Check, Create, Delete, RegistryOperation, Session, Set
from headrace.registry.zookeeper_plan import (
    StepKind,
    ZooKeeperPaths,
    ZooKeeperStep,
    parse_registry_url,
    plan_transaction,
    size_of,
)

PATHS = ZooKeeperPaths("/headrace")
NAMES = st.text("abc0.-", min_size=1, max_size=4)
KEYS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


def shown(steps: list[ZooKeeperStep]) -> list[str]:
    return [f"{step.kind.value} {step.path.removeprefix('/headrace')}" for step in steps]


@given(KEYS, KEYS)
def test_a_leaf_is_the_leaf_of_one_key_and_never_a_folder(key: str, other: str) -> None:
    assert PATHS.key(PATHS.leaf(key)) == key
    assert PATHS.key(PATHS.folder(key)) is None
    assert PATHS.leaf(key) != PATHS.folder(other)
    assert (PATHS.leaf(key) == PATHS.leaf(other)) == (key == other)
    parents = list(PATHS.parents(key))
    assert [len(path) for path in parents] == sorted(len(path) for path in parents)
    assert PATHS.leaf(key).rpartition("/")[0] == (parents[-1] if parents else PATHS.keys)


def test_every_operation_is_one_step_but_for_a_deletion_that_proves_that_nothing_is_beneath() -> None:
    operations: list[RegistryOperation] = [Check("/a", 3), Create("/b/c", b"x"), Set("/d", b"y", 4), Delete("/e/f", 5)]
    steps = plan_transaction(PATHS, operations, None, {})
    assert shown(steps) == [
        "check /keys/=a",
        "create /keys/b/=c",
        "set /keys/=d",
        "delete /keys/e/=f",
        "create /keys/e/f",
        "delete /keys/e/f",
    ]
    assert [step.version for step in steps] == [3, -1, 4, 5, -1, -1]


def test_folders_that_are_there_are_deleted_from_within_and_made_again_from_without() -> None:
    folders = {"/a": ["/headrace/keys/a", "/headrace/keys/a/b"]}
    assert shown(plan_transaction(PATHS, [Delete("/a", 0)], None, folders)) == [
        "delete /keys/=a",
        "delete /keys/a/b",
        "delete /keys/a",
        "create /keys/a",
        "create /keys/a/b",
    ]


def test_a_commit_checks_its_session_first() -> None:
    session = Session(-1)
    steps = plan_transaction(PATHS, [Create("/live/1", b"", session)], PATHS.session(session.id), {})
    assert steps[0] == ZooKeeperStep(StepKind.CHECK, "/headrace/sessions/ffffffffffffffff", None, version=0)
    assert steps[1].is_ephemeral


def test_the_size_covers_paths_and_values() -> None:
    steps = plan_transaction(PATHS, [Create("/a", b"x" * 100), Set("/b", b"x" * 50, 0)], None, {})
    assert size_of(steps) > 150 + sum(len(step.path) for step in steps)


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zookeeper://a:2181/headrace", "a:2181", "/headrace"),
        ("zookeeper://a:1,b:2,c:3/x/y", "a:1,b:2,c:3", "/x/y"),
        ("zookeeper://a,[::1]:2182,[::1]/x", "a:2181,[::1]:2182,[::1]:2181", "/x"),
    ],
)
def test_a_registry_is_named_by_its_hosts_and_a_path(text: str, hosts: str, root: str) -> None:
    assert parse_registry_url(text) == (hosts, root)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:2181/x", "http://a:2181/x", "zookeeper://", "zookeeper://a:2181", "zookeeper://a:2181/"),
        *("zookeeper:///x", "zookeeper://a:2181//x", "zookeeper://a:2181/x/", "zookeeper://a:0/x"),
        *("zookeeper://a:70000/x", "zookeeper://a:x/x", "zookeeper://:2181/x", "zookeeper://a:1,,b:2/x"),
        "zookeeper://a:1/../x",
    ],
)
def test_any_other_name_is_refused_with_what_it_should_look_like(text: str) -> None:
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        parse_registry_url(text)
