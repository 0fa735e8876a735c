"""The requests of a joint commit in a broker, and its members."""

from __future__ import annotations

from typing import Any

from tests.unit.broker.transactions.transaction_support import NEWER, RequestTarget, Transactor

from headrace.machines.transactions.joint_commits import member_id
from headrace.wire.messages.transactions import BundleMember, DescribeBundleRequest, EndBundleRequest

BUNDLE = "nightly"


def member(simulated_broker: RequestTarget, name: str, *, generation: int = NEWER) -> Transactor:
    return Transactor(simulated_broker, member_id(BUNDLE, name), generation=generation)


async def writing(
    simulated_broker: RequestTarget,
    name: str,
    value: bytes,
    *partitions: int,
    generation: int = NEWER,
    timeout_ms: int = 60_000,
) -> Transactor:
    """A member that has begun, and written to these partitions."""
    begun = member(simulated_broker, name, generation=generation)
    assert await begun.init(timeout_ms=timeout_ms) == 0
    for partition in partitions:
        assert await begun.send(value, partition=partition) == 0
    return begun


def claim(transactor: Transactor) -> BundleMember:
    return BundleMember(transactor.transactional_id, transactor.producer_id, transactor.epoch)


def end_request(sequence: int, *members: Transactor | BundleMember, commit: bool = True) -> EndBundleRequest:
    claims = [claim(one) if isinstance(one, Transactor) else one for one in members]
    return EndBundleRequest(BUNDLE, sequence, commit, claims)


async def end(
    simulated_broker: RequestTarget, sequence: int, *members: Transactor | BundleMember, commit: bool = True
) -> Any:
    return await simulated_broker.send(end_request(sequence, *members, commit=commit), 0)


async def commit(simulated_broker: RequestTarget, sequence: int, *members: Transactor | BundleMember) -> bool | int:
    """Whether they are committed, or the error code."""
    response = await end(simulated_broker, sequence, *members)
    return int(response.error_code) or bool(response.is_committed)


async def abort(simulated_broker: RequestTarget, *members: Transactor | BundleMember) -> int:
    response = await end(simulated_broker, -1, *members, commit=False)
    assert not response.is_committed
    return int(response.error_code)


async def sequence(simulated_broker: RequestTarget) -> int:
    response = await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)
    assert response.error_code == 0, response
    return int(response.sequence)
