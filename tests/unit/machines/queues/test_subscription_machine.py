"""Any order of leases, settlements, time, restarts and seeks, compared with a model of single messages."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.machines.queues.subscription_driver import SubscriptionDriver, contents, message

from headrace.machines.queues.subscription_values import (
    Ack,
    ClassifiedMessage,
    DeliveryState,
    GrantedRange,
    Nack,
    OffsetGap,
    Range,
    Reject,
    Release,
    Settlement,
    SubscriptionCounts,
)
from headrace.model.errors import InvalidRecordState
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import Sought

BACKOFF_MS = 100
BACKOFF_MAX_MS = 350
SLACKS_MS = [900, 800, 700, 600, 500, 400, 300, 200, 100, 0]

members = st.sampled_from("abc")
positions = st.integers(0, 50)
CUTS = [(0, 0), (0, 0), (0, 0), (1, 0), (0, 1), (2, 1), (-1, 0), (0, -1)]
failures = st.sampled_from([Nack(), Nack(0, "not now"), Nack(700, "later"), Nack(None, "busy"), Reject("never")])


class Message:
    """The model of one message."""

    def __init__(self, opened: ClassifiedMessage) -> None:
        self.opened = opened
        self.exists = True
        self.arrived_ms = opened.arrived_ms
        self.is_settled = False
        self.was_rejected = False  # rejected, or at the delivery limit of its time
        self.is_dead_letter_pending = False
        self.attempts = 0  # failed ones
        self.due_ms = 0
        self.reason = ""
        self.lease: tuple[str, int] | None = None

    def is_ready(self, now_ms: int) -> bool:
        return not self.is_settled and not self.is_dead_letter_pending and self.lease is None and self.due_ms <= now_ms

    def standing(self, now_ms: int) -> DeliveryState:
        if self.is_settled:
            return DeliveryState("settled")
        if self.lease is not None:
            return DeliveryState("leased", self.attempts + 1, *self.lease, self.reason)
        if self.is_dead_letter_pending:
            return DeliveryState("dying", self.attempts, reason=self.reason)
        if self.due_ms > now_ms:
            return DeliveryState("waiting", self.attempts, until_ms=self.due_ms, reason=self.reason)
        return DeliveryState("ready", self.attempts, reason=self.reason)


class PlainMachine(RuleBasedStateMachine):
    overrides: dict[str, str] = {}

    @initialize(
        start=st.sampled_from([0, 65_530, 2**32 - 5]),
        limit=st.integers(1, 4),
        locks=st.sampled_from([0, 0, 5]),
        keeps_dead=st.booleans(),
    )
    def begin(self, start: int, limit: int, locks: int, keeps_dead: bool) -> None:
        self.start = start
        self.driver = SubscriptionDriver(
            start,
            {
                "share_delivery_count_limit": str(limit),
                "share_partition_max_record_locks": str(locks),
                "headrace_retry_backoff_ms": str(BACKOFF_MS),
                "headrace_retry_backoff_max_ms": str(BACKOFF_MAX_MS),
                "headrace_dead_letters_enable": str(keeps_dead).lower(),
                **self.overrides,
            },
        )
        self.model: dict[int, Message] = {}
        self.outstanding: list[tuple[str, GrantedRange]] = []
        self.snapshot_at = 0
        self.log_start = start
        self.redrives = 0
        self.messages_arrive(12)

    @property
    def now_ms(self) -> int:
        return self.driver.now_ms

    @property
    def config(self) -> SubscriptionConfig:
        return self.driver.machine.config

    # --- the model ---

    def settle_in_model(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            one = self.model[offset]
            one.is_settled, one.lease = True, None

    def fail_in_model(self, offsets: Iterable[int], how: Nack | Reject) -> None:
        for offset in offsets:
            one = self.model[offset]
            one.attempts += 1
            one.lease, one.reason, one.due_ms = None, how.reason, 0
            if isinstance(how, Reject) or one.attempts >= self.config.share_delivery_count_limit:
                one.is_dead_letter_pending = one.was_rejected = self.config.headrace_dead_letters_enable
                one.is_settled = not one.is_dead_letter_pending
            elif how.delay_ms is None:
                one.due_ms = self.now_ms + min(BACKOFF_MS * 2 ** (one.attempts - 1), BACKOFF_MAX_MS)
            else:
                one.due_ms = self.now_ms + how.delay_ms

    def expire_in_model(self) -> None:
        over = [o for o, one in self.model.items() if one.lease is not None and one.lease[1] <= self.now_ms]
        self.fail_in_model(over, Nack(reason="the lease expired"))

    def ready_in_model(self) -> list[int]:
        return [offset for offset, one in self.model.items() if one.is_ready(self.now_ms)]

    def allowed_in_model(self, count: int) -> int:
        locks = self.config.share_partition_max_record_locks
        leased = sum(one.lease is not None for one in self.model.values())
        return min(count, locks - leased) if locks else count

    def check_choice(self, chosen: list[int], count: int) -> None:
        ready = self.ready_in_model()
        assert set(chosen) <= set(ready)
        assert len(chosen) == max(0, min(self.allowed_in_model(count), len(ready)))
        for passed_over in set(ready) - set(chosen):
            has_failed = self.model[passed_over].attempts > 0
            later = [o for o in chosen if o > passed_over and (has_failed or not self.model[o].attempts)]
            assert not later, "only retries may precede earlier messages"

    # --- actions ---

    @rule(count=st.integers(1, 12))
    def messages_arrive(self, count: int) -> None:
        for offset in range(self.driver.end, self.driver.end + count):
            self.model[offset] = Message(message(offset))
        self.driver.end += count

    @rule(ms=st.sampled_from([1, 1, 99, 100, 1_000, 29_999, 30_000]), advances_machine=st.booleans())
    def time_passes(self, ms: int, advances_machine: bool) -> None:
        if advances_machine:
            self.driver.wait(ms)
            self.expire_in_model()
        else:
            self.driver.now_ms += ms

    @rule(member=members, count=st.integers(1, 8), share=st.sampled_from(["all", "all", "first", "tail", "none"]))
    def a_member_leases(self, member: str, count: int, share: str) -> None:
        ranges = self.driver.choose(count)
        chosen = [offset for first, last in ranges for offset in range(first, last + 1)]
        assert chosen == sorted(chosen)
        self.check_choice(chosen, count)
        assert self.driver.choose(count) == ranges, "choose changes no state"
        tail = [Range((first + last) // 2, last) for first, last in ranges[-1:]]
        ranges = {"all": ranges, "first": ranges[:1], "tail": tail, "none": []}[share]
        granted = self.driver.machine.grant(ranges, member, self.now_ms)
        assert [(o, g.attempt) for g in granted for o in range(g.first, g.last + 1)] == [
            (o, self.model[o].attempts + 1) for first, last in ranges for o in range(first, last + 1)
        ]
        until_ms = self.now_ms + self.config.share_record_lock_duration_ms
        for one in granted:
            self.outstanding.append((member, one))
            for offset in range(one.first, one.last + 1):
                assert self.model[offset].lease is None, "two leases for one message"
                self.model[offset].lease = (member, until_ms)

    def live(self) -> list[tuple[str, GrantedRange]]:
        """Return the current leases; lease some messages if there are none."""
        if not any(one.lease for one in self.model.values()):
            self.a_member_leases("a", 6, "all")
        return [
            (member, granted)
            for member, granted in self.outstanding
            if all(self.holds(member, o, o, granted.attempt) for o in (granted.first, granted.last))
        ]

    def holds(self, member: str, first: int, last: int, attempt: int | None) -> bool:
        for offset in range(first, last + 1):
            one = self.model.get(offset)
            if one is None or one.lease is None or one.lease[0] != member or one.lease[1] <= self.now_ms:
                return False
            if attempt is not None and one.attempts + 1 != attempt:
                return False
        return True

    def settle(self, first: int, last: int, how: Settlement, member: str, attempt: int | None) -> None:
        """Settle, and compare the result with the model."""
        if not self.holds(member, first, last, attempt):
            before = self.durable()
            with pytest.raises(InvalidRecordState):
                self.driver.settle(first, last, how, member, attempt)
            assert self.durable() == before
            return
        self.driver.settle(first, last, how, member, attempt)
        if isinstance(how, Nack | Reject):
            self.fail_in_model(range(first, last + 1), how)
        elif isinstance(how, Release):
            for offset in range(first, last + 1):
                self.model[offset].lease = None
        else:
            self.settle_in_model(range(first, last + 1))

    @rule(position=positions, cut=st.sampled_from(CUTS), how=st.sampled_from([Ack(), Ack(), OffsetGap(), Release()]))
    def a_member_acks(self, position: int, cut: tuple[int, int], how: Settlement) -> None:
        self.settle_live(position, cut, how)

    @rule(position=positions, cut=st.sampled_from(CUTS), how=failures)
    def a_member_fails(self, position: int, cut: tuple[int, int], how: Settlement) -> None:
        self.settle_live(position, cut, how)

    def settle_live(self, position: int, cut: tuple[int, int], how: Settlement) -> None:
        live = self.live()
        if live:
            member, granted = live[position % len(live)]
            first, last = granted.first + cut[0], granted.last - cut[1]
            if self.start <= first <= last:
                self.settle(first, last, how, member, granted.attempt if position % 2 else None)

    @precondition(lambda self: self.outstanding)
    @rule(position=positions, member=members, how=st.sampled_from([Ack(), Nack()]), has_attempt=st.booleans())
    def arbitrary_member_settles(self, position: int, member: str, how: Settlement, has_attempt: bool) -> None:
        granted = self.outstanding[position % len(self.outstanding)][1]
        self.settle(granted.first, granted.last, how, member, granted.attempt if has_attempt else None)

    @precondition(lambda self: self.outstanding)
    @rule(position=positions, lease_ms=st.sampled_from([1, 90_000]))
    def a_member_extends(self, position: int, lease_ms: int) -> None:
        member, (first, last, attempt) = self.outstanding[-1 - position % len(self.outstanding)]
        if not self.holds(member, first, last, attempt):
            with pytest.raises(InvalidRecordState):
                self.driver.machine.extend(first, last, member, attempt, self.now_ms, lease_ms)
            return
        self.driver.machine.extend(first, last, member, attempt, self.now_ms, lease_ms)
        for offset in range(first, last + 1):
            self.model[offset].lease = (member, self.now_ms + lease_ms)

    @rule(member=members)
    def a_member_is_removed(self, member: str) -> None:
        self.driver.store(self.driver.machine.release_member(member, self.now_ms))
        held = [o for o, one in self.model.items() if one.lease is not None and one.lease[0] == member]
        self.fail_in_model(held, Nack(reason="the member is gone"))
        for offset in held:
            self.model[offset].lease = None

    @rule()
    def dead_letters_are_written(self) -> None:
        dying = [offset for offset, one in self.model.items() if one.is_dead_letter_pending and not one.is_settled]
        assert self.driver.dead_letter() == dying
        self.settle_in_model(dying)

    @rule(position=positions, kind=st.sampled_from(["trim", "seek", "limit", "limit"]))
    def log_start_floor_or_limit_changes(self, position: int, kind: str) -> None:
        if kind == "trim":
            self.trim_log(min(self.driver.machine.floor + position % 4, self.driver.end))
        elif kind == "seek":
            self.an_administrator_seeks(min(self.start + position, self.driver.end))
        else:
            self.change_delivery_limit(1 + position % 4)

    @rule(position=positions)
    def a_message_is_redriven(self, position: int) -> None:
        settled = [offset for offset, one in self.model.items() if one.is_settled and self.can_be_redriven(offset)]
        if settled:
            self.redrive(settled[position % len(settled)])

    def can_be_redriven(self, offset: int) -> bool:
        return offset >= self.log_start

    def redrive(self, offset: int) -> None:
        self.redrives += 1
        for _ in range(2):  # a repeated request changes nothing
            self.driver.store(self.driver.machine.redrive([(offset, self.redrives)], self.now_ms))
        self.model[offset] = Message(self.model[offset].opened)

    def trim_log(self, log_start: int) -> None:
        self.log_start = max(self.log_start, log_start)
        event = self.driver.machine.trimmed(log_start, self.now_ms)
        self.driver.store([] if event is None else [event])
        self.settle_in_model(o for o in self.model if o < log_start)

    def an_administrator_seeks(self, floor: int) -> None:
        self.driver.store([Sought(self.now_ms, floor)])
        for offset, one in list(self.model.items()):
            self.model[offset] = Message(one.opened)
            self.model[offset].is_settled = offset < floor

    def change_delivery_limit(self, limit: int) -> None:
        self.driver.config = dataclasses.replace(self.driver.config, share_delivery_count_limit=limit)
        self.driver.machine.reconfigure(self.driver.config)
        self.apply_delivery_limit()

    def apply_delivery_limit(self) -> None:
        for one in self.model.values():
            has_failed_enough = one.was_rejected or one.attempts >= self.config.share_delivery_count_limit
            one.is_dead_letter_pending = has_failed_enough and not one.is_settled and one.lease is None

    # --- the log ---

    def durable(self) -> object:
        return contents(self.driver.machine)

    @rule(chunk=st.sampled_from([150, 1_000_000]), is_whole=st.sampled_from([True, True, False]))
    def a_snapshot_is_written(self, chunk: int, is_whole: bool) -> None:
        at = len(self.driver.log)
        parts = self.driver.write_snapshot(chunk)
        if is_whole:
            self.snapshot_at = at
        elif len(parts) > 1:
            del self.driver.log[-1]
        else:
            del self.driver.log[at:]

    @rule(from_snapshot=st.booleans())
    def the_broker_restarts(self, from_snapshot: bool) -> None:
        before = self.durable()
        self.driver.restart(self.snapshot_at if from_snapshot else 0)
        assert self.durable() == before
        for one in self.model.values():
            one.lease = None
        self.apply_delivery_limit()

    # --- invariants ---

    @invariant()
    def delivery_states_match_the_model(self) -> None:
        machine = self.driver.machine
        machine.choose(self.now_ms, 0, 0)  # makes due retries ready
        for offset, one in self.model.items():
            assert machine.state_of(offset) == one.standing(self.now_ms), offset
        unsettled = [offset for offset, one in self.model.items() if not one.is_settled]
        assert machine.floor == min(unsettled, default=self.driver.end)
        offsets_lookup = [one.standing(self.now_ms).state for one in self.model.values()]
        assert machine.counts(self.driver.end) == SubscriptionCounts(
            backlog=len(unsettled),
            leased=offsets_lookup.count("leased"),
            waiting=offsets_lookup.count("waiting"),
            dying=offsets_lookup.count("dying"),
            settled_above_floor=sum(one.is_settled for o, one in self.model.items() if o > machine.floor),
        )

    @invariant()
    def next_due_time_matches_the_model(self) -> None:
        assert self.driver.machine.next_due_ms() == min(self.due_times(), default=None)

    def due_times(self) -> list[int]:
        live = [one for one in self.model.values() if not one.is_settled]
        times = [one.lease[1] for one in live if one.lease is not None]
        return times + [one.due_ms for one in live if one.standing(self.now_ms).state == "waiting"]

    def teardown(self) -> None:
        """All unsettled messages are delivered in the end."""
        if not hasattr(self, "model"):
            return
        for start in (0, self.snapshot_at):
            assert contents(self.driver.replayed(start)) == self.durable()
        for _ in range(200):
            self.driver.wait(1_000)
            self.expire_in_model()
            self.drain()
            if all(one.is_settled for one in self.model.values()):
                break
        assert self.driver.machine.counts(self.driver.end).backlog == 0
        assert self.driver.machine.floor == self.driver.end

    def drain(self) -> None:
        for first, last, _ in self.driver.lease(1_000, "z"):
            self.driver.ack(first, last, "z")
            self.settle_in_model(range(first, last + 1))
        self.settle_in_model(self.driver.dead_letter())


class OpenedMachine(PlainMachine):
    """Priorities, order per key, filter and expiry, in any combination."""

    @initialize(
        start=st.sampled_from([0, 65_530]),
        limit=st.integers(1, 4),
        key_slots=st.integers(0, 2),
        has_classes=st.booleans(),
    )
    def begin(self, start: int, limit: int, key_slots: int, has_classes: bool) -> None:
        self.overrides = {
            "headrace_filter": "key = 'x'",
            "headrace_expiry_enable": "true",
            "headrace_key_concurrency": str(key_slots),
            "headrace_priority_slack_ms": ",".join(map(str, SLACKS_MS)) if has_classes else "",
        }
        self.newest_ms = 0
        super().begin(start, limit, 0, True)

    # Every action that may have moved `classified_to` is followed by an offer.

    @rule(count=st.integers(1, 12), pattern=st.integers(0, 10**9))
    def messages_arrive(self, count: int, pattern: int = 271_828_182) -> None:
        """Derive the messages from random bits, because drawing each field is slow."""
        for offset in range(self.driver.end, self.driver.end + count):
            noise = pattern // (offset - self.driver.end + 1) % 100_003
            opened = message(
                offset,
                priority=noise % 10,
                key=(None, b"k", b"l")[noise // 10 % 3],
                arrived_ms=self.now_ms + 100 - noise // 30 % 5 * 100,
                expires_ms=self.now_ms + 900 if noise // 150 % 3 == 0 else None,
                matches=noise // 450 % 8 != 0,
            )
            self.model[offset] = Message(opened)
            self.model[offset].exists = noise // 3_600 % 9 != 0
        self.driver.end += count
        self.offer()

    def offer(self) -> None:
        machine = self.driver.machine
        assert machine.wants_classified
        for end in (self.driver.end - 3, self.driver.end):
            begin = machine.classified_to
            if begin >= end:
                continue
            messages = [one.opened for o, one in self.model.items() if begin <= o < end and one.exists]
            self.driver.store(machine.offer(messages, end, self.now_ms))
            for offset, one in self.model.items():
                if begin <= offset < end and one.lease is None and not one.is_dead_letter_pending:
                    is_over = one.opened.expires_ms is not None and one.opened.expires_ms <= self.now_ms
                    one.is_settled |= is_over or not one.opened.matches or not one.exists
                if begin <= offset < end and not one.is_settled and not one.is_dead_letter_pending:
                    # A message does not arrive before earlier messages, nor before the log was read to its end.
                    one.arrived_ms = self.newest_ms = max(min(one.opened.arrived_ms, self.now_ms), self.newest_ms)
        assert machine.classified_to == self.driver.end

    def expire_in_model(self) -> None:
        expired_ranges = [offset for offset, one in self.model.items() if self.is_outlived(one) and one.lease is None]
        super().expire_in_model()
        self.settle_in_model(expired_ranges)

    def is_outlived(self, one: Message) -> bool:
        if one.is_settled or one.is_dead_letter_pending or one.opened.expires_ms is None:
            return False
        return one.opened.expires_ms <= self.now_ms

    def can_be_redriven(self, offset: int) -> bool:
        """Without a key: which message of a key gets a slot depends on when it became free."""
        one = self.model[offset]
        has_expired = one.opened.expires_ms is not None and one.opened.expires_ms <= self.now_ms
        is_delivered = one.exists and one.opened.matches and not has_expired
        return super().can_be_redriven(offset) and is_delivered and one.opened.key is None

    def redrive(self, offset: int) -> None:
        super().redrive(offset)
        one, machine = self.model[offset], self.driver.machine
        assert machine.classified_to <= offset
        messages = [one.opened for o, one in self.model.items() if machine.classified_to <= o and one.exists]
        self.driver.store(machine.offer(messages, self.driver.end, self.now_ms))
        one.arrived_ms = self.newest_ms = max(min(one.opened.arrived_ms, self.now_ms), self.newest_ms)

    def trim_log(self, log_start: int) -> None:
        super().trim_log(log_start)
        self.offer()

    def an_administrator_seeks(self, floor: int) -> None:
        existing = {offset: one.exists for offset, one in self.model.items()}
        super().an_administrator_seeks(floor)
        for offset, exists in existing.items():
            self.model[offset].exists = exists
        self.offer_again()

    def change_delivery_limit(self, limit: int) -> None:
        super().change_delivery_limit(limit)
        self.offer_again()

    @rule(from_snapshot=st.booleans())
    def the_broker_restarts(self, from_snapshot: bool) -> None:
        super().the_broker_restarts(from_snapshot)
        self.offer_again()

    def offer_again(self) -> None:
        self.newest_ms = 0
        self.offer()

    def ready_in_model(self) -> list[int]:
        """Return the messages that have a slot of their key: its first unsettled ones."""
        slots = self.config.headrace_key_concurrency
        ready = []
        used = Counter[bytes]()
        for offset, one in self.model.items():
            key = one.opened.key
            if slots and key is not None and not one.is_settled and not one.is_dead_letter_pending:
                used[key] += 1
                if used[key] > slots:
                    assert one.lease is None
                    continue
            if one.is_ready(self.now_ms) and not self.is_outlived(one):
                ready.append(offset)
        return ready

    def check_choice(self, chosen: list[int], count: int) -> None:
        """Compare with messages taken one by one from the class with the most urgent head."""
        slacks = self.config.slacks_ms or (0,)
        classes: dict[int, list[int]] = {}
        for offset in self.ready_in_model():
            priority = self.model[offset].opened.priority if len(slacks) > 1 else 0
            classes.setdefault(priority, []).append(offset)
        expected: list[int] = []
        while any(classes.values()) and len(expected) < count:
            urgency = {
                p: (self.model[offsets[0]].arrived_ms + slacks[p], -p) for p, offsets in classes.items() if offsets
            }
            expected.append(classes[min(urgency, key=urgency.__getitem__)].pop(0))
        assert chosen == sorted(expected)
        self.newest_ms = max(self.newest_ms, self.now_ms)

    def due_times(self) -> list[int]:
        lives = [
            one.opened.expires_ms
            for one in self.model.values()
            if one.opened.expires_ms is not None
            and not one.is_settled
            and not one.is_dead_letter_pending
            and one.lease is None
        ]
        return super().due_times() + lives


PlainMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
OpenedMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestPlainMachine = PlainMachine.TestCase
TestOpenedMachine = OpenedMachine.TestCase
