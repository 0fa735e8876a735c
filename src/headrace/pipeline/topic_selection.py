"""The topics that a job's settings select, and the location of its archive.

A text that is a valid topic name is a name; any other text is a pattern (RE2) that must match the whole name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.columns.offsets import topics_matching
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import HeadraceError, InvalidTopic
from headrace.model.ids import id_to_text
from headrace.model.names import check_topic_name, compiled


def is_name(text: str) -> bool:
    try:
        check_topic_name(text)
    except InvalidTopic:
        return False
    return True


def wrong_topics(texts: Sequence[str]) -> Sequence[str]:
    if not texts:
        return ["topics: name at least one"]
    found = []
    for text in texts:
        try:
            if not is_name(text):
                compiled(text)
        except HeadraceError as error:
            found.append(f"topics: {error.message}")
    return found


def chosen(texts: Iterable[str], matching: Iterable[str]) -> list[str]:
    """The names of `matching` that equal or match one of the texts."""
    names = list(matching)
    return sorted({n for text in texts for n in names if (n == text if is_name(text) else compiled(text).fullmatch(n))})


def topic_names(brokers: str, texts: Iterable[str]) -> list[str]:
    """The existing topics that the texts select; internal ones only by name."""
    found: set[str] = set()
    for text in texts:
        found |= {text} if is_name(text) else {*topics_matching(brokers, text)}
    return sorted(found)


def topic_ids(brokers: str, names: Sequence[str]) -> dict[str, str]:
    """The ids of the topics; raises UnknownTopicOrPartition."""

    async def ask(cluster: Cluster) -> dict[str, str]:
        await cluster.call_with_retries(lambda: cluster.refresh(names))
        return {name: id_to_text((await cluster.topic(name)).topic_id) for name in names}

    return sync_cluster(brokers).call(ask) if names else {}


def log_bytes(brokers: str, name: str) -> dict[int, int]:
    """The size of each partition on disk."""
    return sync_cluster(brokers).call(lambda cluster: TopicAdmin(cluster).sizes(name))


def location_of(path: str, folder: Path) -> str:
    """Resolve a path against the folder of the pipeline's file; a URI is returned as it is."""
    return path if "://" in path else str(folder / path)
