"""A bundle in a broker: its members, and what is asked for them."""

from __future__ import annotations

from typing import Any

from tests.unit.broker.transacting import NEWER, Asked, Transactor

from headrace.machines.bundles import member_id
from headrace.wire.messages.describe_bundle import DescribeBundleRequest
from headrace.wire.messages.end_bundle import BundleMember, EndBundleRequest

BUNDLE = "nightly"


def member(house: Asked, name: str, *, generation: int = NEWER) -> Transactor:
    return Transactor(house, member_id(BUNDLE, name), generation=generation)


async def writing(
    house: Asked, name: str, value: bytes, *partitions: int, generation: int = NEWER, timeout_ms: int = 60_000
) -> Transactor:
    """A member that has begun, and written to these partitions."""
    begun = member(house, name, generation=generation)
    assert await begun.init(timeout_ms=timeout_ms) == 0
    for partition in partitions:
        assert await begun.send(value, partition=partition) == 0
    return begun


def claim(transactor: Transactor) -> BundleMember:
    return BundleMember(transactor.transactional_id, transactor.producer_id, transactor.epoch)


def end_request(sequence: int, *members: Transactor | BundleMember, commit: bool = True) -> EndBundleRequest:
    claims = [claim(one) if isinstance(one, Transactor) else one for one in members]
    return EndBundleRequest(BUNDLE, sequence, commit, claims)


async def end(house: Asked, sequence: int, *members: Transactor | BundleMember, commit: bool = True) -> Any:
    return await house.ask(end_request(sequence, *members, commit=commit), 0)


async def commit(house: Asked, sequence: int, *members: Transactor | BundleMember) -> bool | int:
    """Whether they are committed, or the error code."""
    answer = await end(house, sequence, *members)
    return int(answer.error_code) or bool(answer.is_committed)


async def abort(house: Asked, *members: Transactor | BundleMember) -> int:
    answer = await end(house, -1, *members, commit=False)
    assert not answer.is_committed
    return int(answer.error_code)


async def sequence(house: Asked) -> int:
    answer = await house.ask(DescribeBundleRequest(BUNDLE), 0)
    assert answer.error_code == 0, answer
    return int(answer.sequence)
