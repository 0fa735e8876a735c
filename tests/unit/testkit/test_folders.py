"""The effect of a power cut on file names."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testkit.file_tree import FileNode, SimFileTree, SimFolder

SEEDS = range(100)
names = st.sampled_from(["a", "b", "c"])


def tree_with_folder() -> tuple[SimFileTree, SimFolder]:
    tree, folder = SimFileTree(), SimFolder()
    tree.add("/data", folder)
    tree.sync(tree.root)
    return tree, folder


def synced_file(content: bytes) -> FileNode:
    node = FileNode()
    node.write(content, 0)
    node.sync()
    return node


def survivors(tree: SimFileTree, seed: int, keep_chance: float = 0.5) -> dict[str, bytes]:
    tree.lose_power(Random(seed), keep_chance)
    return {path: bytes(node.content) for path, node in tree.files().items()}


def test_a_new_name_needs_its_folder_synced_even_if_the_bytes_are() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, _ = tree_with_folder()
        tree.add("/data/log", synced_file(b"x"))
        outcomes.add(tuple(survivors(tree, seed)))
    assert outcomes == {(), ("/data/log",)}


def test_a_name_in_a_synced_folder_survives() -> None:
    for seed in SEEDS:
        tree, folder = tree_with_folder()
        tree.add("/data/log", synced_file(b"x"))
        tree.sync(folder)
        assert survivors(tree, seed, 0.0) == {"/data/log": b"x"}


def test_syncing_one_folder_does_nothing_for_another() -> None:
    tree, folder = tree_with_folder()
    tree.add("/data/inner", SimFolder())
    tree.add("/data/inner/log", synced_file(b"x"))
    tree.sync(folder)
    assert survivors(tree, 1, 0.0) == {}
    assert tree.find("/data/inner") is not None


def test_a_file_in_a_folder_whose_name_is_lost_is_lost_with_it() -> None:
    tree, _ = tree_with_folder()
    inner = SimFolder()
    tree.add("/data/inner", inner)
    tree.add("/data/inner/log", synced_file(b"x"))
    tree.sync(inner)
    tree.lose_power(Random(1), 0.0)
    assert tree.find("/data/inner") is None


def test_a_removed_name_may_come_back_until_its_folder_is_synced() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, folder = tree_with_folder()
        tree.add("/data/log", synced_file(b"x"))
        tree.sync(folder)
        tree.remove("/data/log")
        outcomes.add(tuple(survivors(tree, seed)))
    assert outcomes == {(), ("/data/log",)}


def test_a_rename_happens_as_a_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, folder = tree_with_folder()
        tree.add("/data/meta", synced_file(b"old"))
        tree.sync(folder)
        tree.add("/data/meta.tmp", synced_file(b"new"))
        tree.rename("/data/meta.tmp", "/data/meta")
        outcomes.add(tuple(survivors(tree, seed).items()))
    assert outcomes == {
        (("/data/meta", b"old"),),
        (("/data/meta", b"new"),),
        (("/data/meta", b"old"), ("/data/meta.tmp", b"new")),
    }


def test_a_renamed_file_whose_bytes_were_not_synced_may_be_empty_under_its_new_name() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, folder = tree_with_folder()
        draft = FileNode()
        draft.write(b"new", 0)
        tree.add("/data/meta.tmp", draft)
        tree.rename("/data/meta.tmp", "/data/meta")
        tree.sync(folder)
        outcomes.add(survivors(tree, seed)["/data/meta"])
    assert {b"", b"new", b"\0\0\0"} <= outcomes


def test_changes_of_different_names_survive_whatever_their_order_was() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, _ = tree_with_folder()
        tree.add("/data/first", synced_file(b""))
        tree.add("/data/second", synced_file(b""))
        outcomes.add(tuple(survivors(tree, seed)))
    assert ("/data/second",) in outcomes
    assert len(outcomes) == 4


def test_a_renamed_folder_moves_with_its_files_or_not_at_all() -> None:
    outcomes = set()
    for seed in SEEDS:
        tree, folder = tree_with_folder()
        inner = SimFolder()
        tree.add("/data/topic", inner)
        tree.sync(folder)
        tree.add("/data/topic/log", synced_file(b"x"))
        tree.sync(inner)
        tree.rename("/data/topic", "/data/topic.deleted")
        outcomes.add(tuple(survivors(tree, seed)))
    assert outcomes == {("/data/topic/log",), ("/data/topic.deleted/log",)}


def test_a_rename_between_folders_is_durable_with_its_new_folder() -> None:
    tree, _ = tree_with_folder()
    other = SimFolder()
    tree.add("/other", other)
    tree.sync(tree.root)
    tree.add("/data/log", synced_file(b"x"))
    tree.rename("/data/log", "/other/log")
    tree.sync(other)
    assert survivors(tree, 1, 1.0) == {"/other/log": b"x"}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), names, names),
            st.tuples(st.just("remove"), names, names),
            st.tuples(st.just("rename"), names, names),
            st.tuples(st.just("sync"), names, names),
        ),
        max_size=15,
    ),
    st.integers(0, 999),
)
def test_a_file_always_has_one_name_and_a_synced_folder_is_unchanged(
    script: list[tuple[str, str, str]], seed: int
) -> None:
    tree, folder = tree_with_folder()
    synced: dict[str, bytes] = {}
    touched: set[str] = set()
    for number, (action, first, second) in enumerate(script):
        path, target = f"/data/{first}", f"/data/{second}"
        there = tree.find(path) is not None
        if action == "sync":
            tree.sync(folder)
            synced = {path: bytes(node.content) for path, node in tree.files().items()}
            touched.clear()
        elif action == "add" and not there:
            tree.add(path, synced_file(b"%d" % number))
            touched.add(path)
        elif action == "remove" and there:
            tree.remove(path)
            touched.add(path)
        elif action == "rename" and there and first != second:
            tree.rename(path, target)
            touched.update((path, target))
    survived = survivors(tree, seed)
    assert len(set(survived.values())) == len(survived), "no file shows under two names"
    for path, content in synced.items():
        if path not in touched:
            assert survived[path] == content
    for path in survived:
        assert path in synced or path in touched


@pytest.mark.parametrize(("path", "error"), [("/data/x/y", FileNotFoundError), ("/data/log/y", NotADirectoryError)])
def test_a_name_needs_a_folder_to_be_in(path: str, error: type[OSError]) -> None:
    tree, _ = tree_with_folder()
    tree.add("/data/log", FileNode())
    with pytest.raises(error):
        tree.add(path, FileNode())
