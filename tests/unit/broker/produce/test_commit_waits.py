"""Waiting for a commit: the order and the results of the waits."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.broker.produce.commit_waits import CommitWaits
from headrace.model.errors import NotLeader, RequestTimedOut


async def test_waits_below_the_offset_complete_and_the_others_stay() -> None:
    waits = CommitWaits()
    first, second, third = (waits.add(offset, 10.0) for offset in (1, 2, 3))
    waits.reach(2)
    assert (first.done(), second.done(), third.done(), len(waits)) == (True, True, False, 1)
    assert first.result() is None
    waits.reach(3)
    assert third.done()


async def test_expire_ends_only_waits_with_a_passed_deadline() -> None:
    waits = CommitWaits()
    late, soon = waits.add(1, 10.0), waits.add(2, 5.0)
    waits.expire(4.9)
    assert not soon.done()
    waits.expire(5.0)
    with pytest.raises(RequestTimedOut):
        soon.result()
    waits.reach(1)
    assert late.result() is None


async def test_end_fails_all_waits() -> None:
    waits = CommitWaits()
    futures = [waits.add(offset, 10.0) for offset in (1, 2)]
    waits.end(NotLeader("gone"))
    for future in futures:
        with pytest.raises(NotLeader):
            future.result()
    waits.end(NotLeader("gone again"))
    assert len(waits) == 0


async def test_a_cancelled_wait_does_not_affect_the_others() -> None:
    waits = CommitWaits()
    gone = [waits.add(offset, 5.0) for offset in (1, 2, 3)]
    for future in gone:
        future.cancel()
    stays = waits.add(4, 10.0)
    waits.reach(1)
    waits.expire(5.0)
    waits.reach(4)
    assert stays.done()
    gone_too = waits.add(5, 5.0)
    gone_too.cancel()
    waits.end(NotLeader("over"))


@pytest.mark.parametrize("ends_by", ["end", "timeout"])
async def test_a_failed_wait_that_was_abandoned_is_not_reported(ends_by: str) -> None:
    """A chaos run logged `Future exception was never retrieved` for the release of leases of a closed connection."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    waits = CommitWaits()
    waits.add(1, 10.0)
    if ends_by == "end":
        waits.end(NotLeader("gone"))
    else:
        waits.expire(10.0)
    gc.collect()
    assert not reported
