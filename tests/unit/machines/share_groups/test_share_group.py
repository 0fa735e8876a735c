"""The members of a share group: admission, assignment, and state after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from headrace.machines.groups.group_topics import TopicImage, TopicsImage
from headrace.machines.share_groups import share_group as share_groups
from headrace.machines.share_groups.share_group import (
    ShareGroup,
    ShareGroupEvent,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareSessionConfig,
    check_share_heartbeat,
)
from headrace.model.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    GroupNotEmpty,
    InvalidRequest,
    UnknownMemberId,
)

TIMING = ShareSessionConfig(session_timeout_ms=45_000, heartbeat_interval_ms=5_000)


class Driver:
    """A share group with topics, a clock and a log."""

    def __init__(self, **topics: int) -> None:
        self.group = ShareGroup("g")
        self.log: list[ShareGroupEvent] = []
        self.now_ms = 1_000
        self.set_topics(**topics)

    def set_topics(self, **topics: int) -> None:
        self.view = TopicsImage({name: TopicImage(UUID(int=at), topics[name]) for at, name in enumerate(topics)})

    def beat(self, member: str, epoch: int, *topics: str) -> ShareHeartbeatResult:
        beat = ShareHeartbeat(
            group_id="g", member_id=member, member_epoch=epoch, topics=frozenset(topics) if topics else None
        )
        self.store(self.group.heartbeat(beat, self.view))
        return self.group.report(beat, self.view, TIMING, self.now_ms)

    def leave(self, member: str) -> None:
        self.store(self.group.leave(ShareHeartbeat(group_id="g", member_id=member, member_epoch=-1), self.view))

    def tick(self) -> None:
        self.store(self.group.tick(self.now_ms, self.view))

    def store(self, events: Iterable[ShareGroupEvent]) -> None:
        events = list(events)
        self.log += events
        self.group.apply(events)

    def restart(self) -> None:
        self.group = ShareGroup("g")
        self.group.apply(self.log)
        self.group.restored(TIMING, self.now_ms)

    def reads(self, member: str) -> list[int]:
        return sorted(index for _, index in self.group.members[member].assigned)


def assigned_partitions(answer: ShareHeartbeatResult) -> list[int] | None:
    return None if answer.assigned is None else sorted(index for _, index in answer.assigned)


def test_the_assignment_is_sent_only_when_it_changes() -> None:
    driver = Driver(t=2)
    response = driver.beat("m1", 0, "t")
    assert (response.member_epoch, response.heartbeat_interval_ms, assigned_partitions(response)) == (1, 5_000, [0, 1])
    assert assigned_partitions(driver.beat("m1", 1)) is None
    assert assigned_partitions(driver.beat("m2", 0, "t")) == [1]
    response = driver.beat("m1", 1)
    assert (response.member_epoch, assigned_partitions(response)) == (2, [0])
    assert assigned_partitions(driver.beat("m1", 2)) is None


def test_a_lost_response_is_sent_again() -> None:
    driver = Driver(t=2)
    driver.beat("m1", 0, "t")
    driver.beat("m2", 0, "t")
    lost = driver.beat("m1", 1)
    assert driver.beat("m1", 1) == lost
    assert assigned_partitions(driver.beat("m1", 0, "t")) == assigned_partitions(lost)


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_member_of_another_epoch_is_fenced(epoch: int) -> None:
    driver = Driver(t=2)
    for member in ("m1", "m2", "m3"):
        driver.beat(member, 0, "t")
        driver.beat("m1", driver.group.members["m1"].epoch)
    with pytest.raises(FencedMemberEpoch):
        driver.beat("m1", epoch)


def test_a_removed_member_is_unknown() -> None:
    driver = Driver(t=1)
    driver.beat("m1", 0, "t")
    with pytest.raises(UnknownMemberId):
        driver.beat("m2", 1)
    driver.leave("m1")
    with pytest.raises(UnknownMemberId):
        driver.leave("m1")


def test_a_group_is_stable_or_empty() -> None:
    driver = Driver(t=1)
    driver.beat("m1", 0, "t")
    assert driver.group.phase == "Stable"
    with pytest.raises(GroupNotEmpty):
        driver.group.ensure_no_members()
    driver.leave("m1")
    assert driver.group.phase == "Empty"
    driver.group.ensure_no_members()


def test_the_number_of_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_groups, "MEMBERS_MAX", 2)
    driver = Driver(t=1)
    driver.beat("m1", 0, "t")
    driver.beat("m2", 0, "t")
    with pytest.raises(GroupMaxSizeReached):
        driver.beat("m3", 0, "t")
    driver.beat("m2", 2)


def test_the_next_heartbeat_detects_new_topics_and_partitions() -> None:
    driver = Driver(t=1)
    driver.beat("m1", 0, "t", "later")
    driver.set_topics(t=3)
    assert assigned_partitions(driver.beat("m1", 1)) == [0, 1, 2]
    driver.set_topics(t=3, other=5)
    assert assigned_partitions(driver.beat("m1", 2)) is None
    driver.set_topics(t=3, other=5, later=1)
    assert assigned_partitions(driver.beat("m1", 2)) == [0, 0, 1, 2]


def test_a_changed_subscription_changes_the_assignment() -> None:
    driver = Driver(t=2, u=1)
    driver.beat("m1", 0, "t")
    assert assigned_partitions(driver.beat("m1", 1, "u")) == [0]
    assert driver.group.metadata_by_member["m1"].topics == {"u"}


def test_a_member_without_heartbeats_is_removed_when_its_session_expires() -> None:
    driver = Driver(t=2)
    driver.beat("m1", 0, "t")
    driver.now_ms += 30_000
    driver.beat("m2", 0, "t")
    assert driver.group.deadline() == 46_000
    driver.now_ms = 45_999
    driver.tick()
    assert set(driver.group.metadata_by_member) == {"m1", "m2"}
    driver.now_ms = 46_000
    driver.tick()
    assert set(driver.group.metadata_by_member) == set(driver.group.members) == {"m2"}
    assert assigned_partitions(driver.beat("m2", 2)) == [0, 1]


def test_after_a_restart_members_keep_their_epochs_and_get_their_assignment() -> None:
    driver = Driver(t=2)
    driver.beat("m1", 0, "t")
    driver.beat("m2", 0, "t")
    driver.now_ms += 40_000
    driver.restart()
    assert driver.group.deadline() == driver.now_ms + 45_000
    for member, epoch in (("m1", 1), ("m2", 2)):
        response = driver.beat(member, epoch)
        assert response.member_epoch == 2
        assert assigned_partitions(response) == driver.reads(member)
    assert sorted(driver.reads("m1") + driver.reads("m2")) == [0, 1]
    with pytest.raises(FencedMemberEpoch):
        driver.beat("m1", 3)


def test_replaying_the_log_gives_the_same_group() -> None:
    driver = Driver(t=3)
    driver.beat("m1", 0, "t")
    driver.beat("m2", 0, "t")
    driver.leave("m1")
    before = driver.group.epoch, driver.group.metadata_by_member
    driver.restart()
    assert (driver.group.epoch, driver.group.metadata_by_member) == before


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"topics": frozenset()}, "SubscribedTopicNames must be set in first request."),
        ({"topics": None}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_an_invalid_heartbeat_is_rejected(fields: dict[str, object], wrong: str) -> None:
    whole = {"group_id": "g", "member_id": "m", "member_epoch": 0, "topics": frozenset({"t"})}
    check_share_heartbeat(ShareHeartbeat(**whole))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=wrong):
        check_share_heartbeat(ShareHeartbeat(**{**whole, **fields}))  # type: ignore[arg-type]
