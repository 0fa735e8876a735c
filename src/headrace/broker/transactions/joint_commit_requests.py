"""DescribeBundle and EndBundle, translated for the coordinator: transactions that commit as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.handlers import RequestContext, RequestHandler
from headrace.broker.transactions.transaction_coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.machines.transactions.joint_commits import (
    NO_SEQUENCE,
    JointCommitMember,
    check_joint_commit_name,
    joint_commit_owner_id,
)
from headrace.model.errors import CoordinatorNotAvailable, HeadraceError
from headrace.wire import apis
from headrace.wire.messages.transactions import (
    BundleMember,
    DescribeBundleRequest,
    DescribeBundleResponse,
    EndBundleRequest,
    EndBundleResponse,
)


class JointCommitRequests:
    """DescribeBundle is answered only while `session_valid`. Otherwise another broker may coordinate the bundle by now,
    and this one does not know what was committed there."""

    def __init__(self, coordinator: TransactionCoordinator, session_valid: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._session_valid = session_valid

    def handlers(self) -> list[RequestHandler[Any, Any]]:
        return [RequestHandler(apis.DESCRIBE_BUNDLE, self.describe), RequestHandler(apis.END_BUNDLE, self.end)]

    async def describe(self, request: DescribeBundleRequest, _context: RequestContext) -> DescribeBundleResponse:
        try:
            bundle = await self._of(request.bundle).describe_bundle(request.bundle)
            if not self._session_valid():
                raise CoordinatorNotAvailable("this broker may no longer be the coordinator; retry")
        except HeadraceError as error:
            return DescribeBundleResponse(error_code=error.code, error_message=error.message)
        if bundle is None:
            return DescribeBundleResponse()
        return DescribeBundleResponse(
            sequence=bundle.sequence,
            members=[
                BundleMember(member.transactional_id, member.producer_id, member.epoch) for member in bundle.members
            ],
            digest=bundle.digest,
        )

    async def end(self, request: EndBundleRequest, _context: RequestContext) -> EndBundleResponse:
        members = [
            JointCommitMember(member.transactional_id, member.producer_id, member.producer_epoch)
            for member in request.members
        ]
        try:
            led = self._of(request.bundle)
            is_committed = await led.end_bundle(
                request.bundle, request.sequence, members, is_commit=request.is_commit, digest=request.digest
            )
        except HeadraceError as error:
            return EndBundleResponse(error_code=error.code, error_message=error.message)
        last = led.joint_commits.find(request.bundle)
        return EndBundleResponse(is_committed=is_committed, sequence=NO_SEQUENCE if last is None else last.sequence)

    def _of(self, bundle: str) -> TransactionShard:
        check_joint_commit_name(bundle)
        return self._coordinator.of(joint_commit_owner_id(bundle))
