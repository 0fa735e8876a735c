"""Joint commits in a broker: members end together, by one batch of the log, and a retry gets the same result."""

from __future__ import annotations

import errno

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.joint_commit_support import (
    BUNDLE,
    abort,
    claim,
    commit,
    end,
    end_request,
    member,
    sequence,
    writing,
)
from tests.unit.broker.transactions.transaction_support import (
    NEWER,
    OLDER,
    Transactor,
    described,
    partition_contents,
    restarted,
    state,
)

from headrace.broker.coordination.state_log import java_hash, read_batches
from headrace.broker.transactions import transactions_log
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.machines.transactions.joint_commits import MEMBERS_MAX, joint_commit_owner_id, member_id
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
    NotCoordinator,
    ProducerFenced,
    TransactionalIdNotFound,
)
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.transactions import (
    BundleMember,
    DescribeBundleRequest,
    EndBundleRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from headrace.wire.state_records.transaction_records import decode_bundle_key, decode_transaction_key, encode_bundle_key

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


def home(simulated_broker: SimulatedBroker) -> int:
    """The partition of the log in which the bundle and all its members lie."""
    return (
        java_hash(f"headrace-bundle:{BUNDLE}")
        % simulated_broker.broker.catalogue.topic(TRANSACTION_STATE).partition_count
    )


def fail(simulated_broker: SimulatedBroker, operation: str, number: int = errno.EIO) -> None:
    topic_id = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE).id
    simulated_broker.host.disk.fail_next(operation, f"*{topic_id.hex}-{home(simulated_broker)}*.log", number)  # type: ignore[arg-type]


async def stored(simulated_broker: SimulatedBroker) -> list[list[str | None]]:
    """Whose records lie together, batch by batch; a bundle's own is written as its owner id."""
    partition = simulated_broker.partition(TRANSACTION_STATE, home(simulated_broker))
    offset, batches = partition.log.start_offset, []
    while offset < partition.log.end_offset:
        data, offset = await read_batches(partition, offset, partition.log.end_offset)
        view = memoryview(data)
        while view:
            header = parse_header(view)
            keys = [bytes(record.key or b"") for record in read_records(view[: header.size_bytes], header, 1 << 20)]
            joint_commits = [decode_bundle_key(key) for key in keys]
            batches.append(
                [
                    decode_transaction_key(key) if bundle is None else joint_commit_owner_id(bundle)
                    for key, bundle in zip(keys, joint_commits, strict=True)
                ]
            )
            view = view[header.size_bytes :]
    return batches


@pytest.fixture
def topic(simulated_broker: SimulatedBroker) -> None:
    simulated_broker.world.run(simulated_broker.create_topic("t", 2))


pytestmark = pytest.mark.usefixtures("topic")


# One commit


@each_generation
async def test_members_end_as_one(simulated_broker: SimulatedBroker, generation: int) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, 1, generation=generation)
    two = await writing(simulated_broker, "1", b"b", 1, generation=generation)
    idle = await writing(simulated_broker, "2", b"", generation=generation)
    assert await sequence(simulated_broker) == -1
    assert await commit(simulated_broker, 0, one, two, idle) is True
    assert (await partition_contents(simulated_broker)).committed == [b"a"]
    assert (await partition_contents(simulated_broker, partition=1)).committed == [b"a", b"b"]
    assert await sequence(simulated_broker) == 0
    result = await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)
    assert result.members == [claim(one), claim(two), claim(idle)]


async def test_one_batch_of_the_log_decides_them_all(simulated_broker: SimulatedBroker) -> None:
    one, two = await writing(simulated_broker, "0", b"a", 0), await writing(simulated_broker, "1", b"b", 1)
    straggler = await writing(simulated_broker, "0.1", b"c", 0)
    before = len(await stored(simulated_broker))
    assert await commit(simulated_broker, 0, two, one) is True
    ids = [each.transactional_id for each in (two, one, straggler)]
    batches = (await stored(simulated_broker))[before:]
    assert batches[0] == [*ids, joint_commit_owner_id(BUNDLE)]
    assert sorted(batches[1:], key=str) == sorted([[one] for one in ids], key=str)
    assert (await partition_contents(simulated_broker)).aborted == [b"c"]


@each_generation
async def test_the_response_waits_for_the_markers(
    simulated_broker: SimulatedBroker, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, generation=generation)
    tell_all = TransactionMarkers.write_all

    async def tell_late(self: TransactionMarkers, *result: object) -> None:
        await simulated_broker.pass_time(1)
        await tell_all(self, *result)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionMarkers, "write_all", tell_late)
    requested = simulated_broker.begin_send(end_request(0, one), 0)
    await simulated_broker.pass_time(0.9)
    again = simulated_broker.begin_send(end_request(0, one), 0)
    await simulated_broker.pass_time(0)
    assert not requested.done()
    assert not again.done()
    assert (await partition_contents(simulated_broker)).open == [b"a"]
    assert (await requested).is_committed
    assert (await again).is_committed
    assert (await partition_contents(simulated_broker)).committed == [b"a"]


async def test_a_partition_without_marker_delays_the_response_not_the_decision(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await writing(simulated_broker, "0", b"a", 0), await writing(simulated_broker, "1", b"b", 1)
    tell_all = TransactionMarkers.write_all
    is_told = False

    async def tell(self: TransactionMarkers, *result: object) -> None:
        while not is_told:
            await simulated_broker.pass_time(0.1)
        await tell_all(self, *result)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionMarkers, "write_all", tell)
    assert await commit(simulated_broker, 0, one, two) == ConcurrentTransactions.code
    assert await sequence(simulated_broker) == 0
    is_told = True
    assert await commit(simulated_broker, 0, one, two) is True


async def test_an_empty_commit_counts(simulated_broker: SimulatedBroker) -> None:
    await writing(simulated_broker, "0", b"a", 0)
    assert await commit(simulated_broker, 5) is True
    assert await sequence(simulated_broker) == 5
    assert (await partition_contents(simulated_broker)).aborted == [b"a"]
    assert await commit(simulated_broker, 5) is True


# Late members


@each_generation
async def test_a_replaced_driver_learns_that_others_have_committed(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    old = await writing(simulated_broker, "0", b"old", 0, generation=generation)
    new = await writing(simulated_broker, "0", b"new", 0, generation=generation)
    assert await commit(simulated_broker, 0, old) == ProducerFenced.code
    assert await commit(simulated_broker, 0, new) is True
    left = await writing(simulated_broker, "1", b"left", 1, generation=generation)
    assert await commit(simulated_broker, 0, old, left) is False
    assert (await partition_contents(simulated_broker))[:3] == ([b"new"], [b"old"], [])
    assert (await partition_contents(simulated_broker, partition=1)).aborted == [b"left"]


async def test_a_later_sequence_invalidates_an_older_one(simulated_broker: SimulatedBroker) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    assert await commit(simulated_broker, 7, one) is True
    response = await end(simulated_broker, 6, await writing(simulated_broker, "0", b"b", 0))
    assert (response.error_code, response.is_committed, response.sequence) == (0, False, 7)
    assert (await partition_contents(simulated_broker))[:3] == ([b"a"], [b"b"], [])


@each_generation
async def test_a_decided_member_is_fenced(simulated_broker: SimulatedBroker, generation: int) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, generation=generation)
    assert await commit(simulated_broker, 0, one) is True
    for _ in range(2):
        assert await one.send(b"b") in (InvalidProducerEpoch.code, ProducerFenced.code)
        assert await one.add("t", 1) == ProducerFenced.code
        assert await one.commit() in (InvalidTransactionState.code, ProducerFenced.code)
        assert await one.abort() == ProducerFenced.code
        assert await one.init(claims=True) == ProducerFenced.code
        simulated_broker.kill(keep_page_cache=False)
        await restarted(simulated_broker)
    assert await partition_contents(simulated_broker) == ([b"a"], [], [], 1)


async def test_a_straggler_is_aborted_with_the_next_commit(simulated_broker: SimulatedBroker) -> None:
    one, straggler = await writing(simulated_broker, "0", b"a", 0), member(simulated_broker, "0.1")
    assert await straggler.init() == 0
    assert await commit(simulated_broker, 0, one) is True
    assert await straggler.send(b"late") == 0
    assert await commit(simulated_broker, 1, await writing(simulated_broker, "0", b"b", 0)) is True
    assert (await partition_contents(simulated_broker))[:3] == ([b"a", b"b"], [b"late"], [])
    assert await straggler.send(b"later") in (InvalidProducerEpoch.code, ProducerFenced.code)


async def test_a_straggler_is_aborted_when_its_time_is_over(simulated_broker: SimulatedBroker) -> None:
    straggler = await writing(simulated_broker, "0.1", b"late", 0, timeout_ms=1_000)
    await simulated_broker.pass_time(30)
    assert (await partition_contents(simulated_broker)).aborted == [b"late"]
    assert await commit(simulated_broker, 1, straggler) == ProducerFenced.code


# Rejected requests


@each_generation
async def test_no_member_is_committed_if_one_cannot_be(simulated_broker: SimulatedBroker, generation: int) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, generation=generation)
    two = await writing(simulated_broker, "1", b"b", 1, generation=generation)
    assert await abort(simulated_broker, two) == 0
    assert await commit(simulated_broker, 0, one, two) == ProducerFenced.code
    unknown = BundleMember(member_id(BUNDLE, "never"), 1, 0)
    assert await commit(simulated_broker, 0, one, unknown) == InvalidProducerIdMapping.code
    assert await commit(simulated_broker, 0, one, claim(one)) == InvalidRequest.code
    assert await commit(simulated_broker, -1, one) == InvalidRequest.code
    assert await state(simulated_broker, one.transactional_id) == "Ongoing"
    assert await sequence(simulated_broker) == -1
    assert await commit(simulated_broker, 0, one) is True
    assert (await partition_contents(simulated_broker)).committed == [b"a"]
    assert (await partition_contents(simulated_broker, partition=1)).aborted == [b"b"]


async def test_the_error_says_why(simulated_broker: SimulatedBroker) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    await writing(simulated_broker, "0", b"a", 0)
    response = await end(simulated_broker, 0, one)
    assert one.transactional_id in response.error_message
    assert "epoch" in response.error_message


@each_generation
async def test_a_member_does_not_commit_by_itself(simulated_broker: SimulatedBroker, generation: int) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, generation=generation)
    assert await one.commit() == InvalidTransactionState.code
    assert await state(simulated_broker, one.transactional_id) == "Ongoing"
    assert await one.abort() == 0
    assert (await partition_contents(simulated_broker)).aborted == [b"a"]


@pytest.mark.parametrize("name", ["", "a#b", "x" * 250])
async def test_a_joint_commit_with_an_invalid_name_is_rejected(simulated_broker: SimulatedBroker, name: str) -> None:
    await writing(simulated_broker, "0", b"a", 0)
    for request in (EndBundleRequest(name, 0, True, []), DescribeBundleRequest(name)):
        assert (await simulated_broker.send(request, 0)).error_code == InvalidRequest.code


@pytest.mark.parametrize("broken", ["headrace-bundle:b", "headrace-bundle:b#", "headrace-bundle:#0"])
async def test_an_invalid_member_id_is_rejected(simulated_broker: SimulatedBroker, broken: str) -> None:
    assert (
        await simulated_broker.send(InitProducerIdRequest(broken, 60_000, -1, -1), 4)
    ).error_code == InvalidRequest.code


async def test_members_of_other_bundles_are_not_ended(simulated_broker: SimulatedBroker) -> None:
    ordinary = Transactor(simulated_broker)
    assert await ordinary.init() == 0
    assert await ordinary.send(b"x") == 0
    assert await commit(simulated_broker, 0, ordinary) == InvalidRequest.code
    assert await abort(simulated_broker, ordinary) == InvalidRequest.code
    assert await commit(simulated_broker, 0) is True
    assert await ordinary.commit() == 0


async def test_a_commit_larger_than_a_batch_is_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    many = [BundleMember(member_id(BUNDLE, str(number)), 1, 0) for number in range(MEMBERS_MAX + 1)]
    assert await commit(simulated_broker, 0, *many) == InvalidRequest.code
    monkeypatch.setattr(transactions_log, "_STORED_BYTES_MAX", 100)
    assert await commit(simulated_broker, 0, one) == MessageTooLarge.code
    assert await state(simulated_broker, one.transactional_id) == "Ongoing"


async def test_a_bundle_is_coordinated_where_its_members_are(simulated_broker: SimulatedBroker) -> None:
    await writing(simulated_broker, "0", b"a", 0)
    places = set()
    for key in (member_id(BUNDLE, "0"), member_id(BUNDLE, "17.3"), joint_commit_owner_id(BUNDLE)):
        assert (await simulated_broker.send(FindCoordinatorRequest(key=key, key_type=1), 3)).error_code == 0
        places.add(simulated_broker.broker._transactions_log.partition_index_of(key))
    assert places == {home(simulated_broker)}
    ordinary = "shop#1"
    topic = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE)
    assert (
        simulated_broker.broker._transactions_log.partition_index_of(ordinary)
        == java_hash(ordinary) % topic.partition_count
    )


async def test_requests_before_the_first_transaction_get_a_retriable_error(simulated_broker: SimulatedBroker) -> None:
    for request in (DescribeBundleRequest(BUNDLE), EndBundleRequest(BUNDLE, 0, True, [])):
        assert (await simulated_broker.send(request, 0)).error_code == NotCoordinator.code
    assert (
        await simulated_broker.send(FindCoordinatorRequest(key=joint_commit_owner_id(BUNDLE), key_type=1), 3)
    ).error_code == 0
    assert await sequence(simulated_broker) == -1


# An abort


async def test_an_abort_ends_open_transactions_and_reverts_no_commit(simulated_broker: SimulatedBroker) -> None:
    one, two = await writing(simulated_broker, "0", b"a", 0), await writing(simulated_broker, "1", b"b", 1)
    assert await commit(simulated_broker, 0, one) is True
    assert (await partition_contents(simulated_broker, partition=1)).aborted == [b"b"]
    three = await writing(simulated_broker, "1", b"c", 1)
    assert await abort(simulated_broker, one, two) == 0
    assert await state(simulated_broker, three.transactional_id) == "Ongoing"
    assert await abort(simulated_broker, one, three) == 0
    assert (await partition_contents(simulated_broker)).committed == [b"a"]
    assert (await partition_contents(simulated_broker, partition=1)).aborted == [b"b", b"c"]
    assert await abort(simulated_broker, one, three) == 0
    assert await sequence(simulated_broker) == 0
    assert await commit(simulated_broker, 0, one) is True


# Coming back


@each_generation
async def test_the_committed_sequence_survives_a_crash(simulated_broker: SimulatedBroker, generation: int) -> None:
    one = await writing(simulated_broker, "0", b"a", 0, generation=generation)
    two = await writing(simulated_broker, "1", b"b", 1, generation=generation)
    assert await commit(simulated_broker, 3, one, two) is True
    for _ in range(2):
        simulated_broker.kill(keep_page_cache=False)
        await restarted(simulated_broker)
        assert await sequence(simulated_broker) == 3
        assert await commit(simulated_broker, 3, two, one) is True
        assert await commit(simulated_broker, 3, one) is False
        assert await commit(simulated_broker, 2) is False
    assert (await partition_contents(simulated_broker)).committed == [b"a"]


async def test_decided_members_get_all_markers_after_a_crash(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await writing(simulated_broker, "0", b"a", 0), await writing(simulated_broker, "1", b"b", 1)
    straggler = await writing(simulated_broker, "0.1", b"c", 0)

    async def tell_none(*_: object) -> None:
        await simulated_broker.pass_time(1_000)

    with monkeypatch.context() as patch:
        patch.setattr(TransactionMarkers, "write_all", tell_none)
        simulated_broker.begin_send(end_request(0, one, two), 0)
        await simulated_broker.pass_time(1)
        assert await state(simulated_broker, one.transactional_id) == "PrepareCommit"
        assert await state(simulated_broker, straggler.transactional_id) == "PrepareAbort"
        simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert (await partition_contents(simulated_broker))[:3] == ([b"a"], [b"c"], [])
    assert (await partition_contents(simulated_broker, partition=1)).committed == [b"b"]
    assert await commit(simulated_broker, 0, one, two) is True


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_commit_that_could_not_be_stored_has_no_effect(simulated_broker: SimulatedBroker, number: int) -> None:
    one, two = await writing(simulated_broker, "0", b"a", 0), await writing(simulated_broker, "1", b"b", 1)
    fail(simulated_broker, "append", number)
    assert await commit(simulated_broker, 0, one, two) == CoordinatorNotAvailable.code
    assert (await partition_contents(simulated_broker)).open == [b"a"]
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert await sequence(simulated_broker) == -1
    assert await commit(simulated_broker, 0, one, two) is True
    assert (await partition_contents(simulated_broker, partition=1)).committed == [b"b"]


async def test_a_commit_that_is_not_on_disk_is_not_acknowledged(simulated_broker: SimulatedBroker) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    fail(simulated_broker, "sync")
    assert await commit(simulated_broker, 0, one) == CoordinatorNotAvailable.code
    assert (await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)).error_code == CoordinatorNotAvailable.code
    assert await commit(simulated_broker, 0, one) == CoordinatorNotAvailable.code
    assert (await partition_contents(simulated_broker)).open == [b"a"]
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert await commit(simulated_broker, 0, one) is True


async def test_an_unused_bundle_expires(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(transactional_id_expiration_ms="60000")
    one = await writing(simulated_broker, "0", b"a", 0)
    assert await commit(simulated_broker, 0, one) is True
    await simulated_broker.pass_time(50)
    assert await sequence(simulated_broker) == 0
    await simulated_broker.pass_time(50)
    assert (await described(simulated_broker, one.transactional_id)).error_code == TransactionalIdNotFound.code
    assert await sequence(simulated_broker) == -1
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert await sequence(simulated_broker) == -1
    assert await commit(simulated_broker, 0) is True


async def test_a_used_bundle_does_not_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(transactional_id_expiration_ms="60000")
    assert await commit(simulated_broker, 0, await writing(simulated_broker, "0", b"a", 0)) is True
    open_since = await writing(simulated_broker, "1", b"b", 0, timeout_ms=900_000)
    await simulated_broker.pass_time(300)
    assert await sequence(simulated_broker) == 0
    assert await commit(simulated_broker, 0, open_since) is False


async def test_only_the_unreadable_joint_commit_is_out_of_service(
    simulated_broker: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    batch = build_batch([BatchRecord(key=encode_bundle_key(BUNDLE), value=b"\0\7?", timestamp_ms=1)])
    partition = simulated_broker.partition(TRANSACTION_STATE, home(simulated_broker))
    partition.append(memoryview(batch), parse_header(batch), 1)
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await commit(simulated_broker, 0, one) == CoordinatorNotAvailable.code
    assert (await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)).error_code == CoordinatorNotAvailable.code
    assert joint_commit_owner_id(BUNDLE) in caplog.text
    assert await abort(simulated_broker, one) == CoordinatorNotAvailable.code
    assert await one.abort() == 0


# What operators see


async def test_members_are_listed_and_the_bundle_is_not(simulated_broker: SimulatedBroker) -> None:
    one = await writing(simulated_broker, "0", b"a", 0)
    assert await commit(simulated_broker, 0, one) is True
    listed = (await simulated_broker.send(ListTransactionsRequest(), 0)).transaction_states
    assert [result.transactional_id for result in listed] == [one.transactional_id]
    assert (await described(simulated_broker, one.transactional_id)).transaction_state == "CompleteCommit"
    assert (await described(simulated_broker, joint_commit_owner_id(BUNDLE))).error_code == TransactionalIdNotFound.code
