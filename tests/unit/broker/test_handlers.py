"""Request handlers: the translation of errors to responses."""

from __future__ import annotations

import pytest

from headrace.broker.handlers import ReportErrors, RequestContext, RequestHandler
from headrace.model.errors import InvalidRequest, NotLeader
from headrace.wire import apis
from headrace.wire.messages.fetch import FetchRequest, FetchResponse
from headrace.wire.messages.replicas import (
    DrainBrokerRequest,
    DrainBrokerResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
)
from headrace.wire.messages.topics import DeleteRecordsPartitionResult, DeleteTopicsRequest, DeleteTopicsResponse


def context(version: int) -> RequestContext:
    return RequestContext(version, None, "host", "PLAINTEXT", lambda _: None, lambda: None)


async def test_an_error_of_a_handler_becomes_a_response_with_its_code_and_message() -> None:
    async def drain(_request: DrainBrokerRequest, _context: RequestContext) -> DrainBrokerResponse:
        raise InvalidRequest("broker 7 does not exist")

    response = await RequestHandler(apis.DRAIN_BROKER, drain).handle(DrainBrokerRequest(broker_id=7), context(0))
    assert response is not None
    assert (response.error_code, response.error_message) == (InvalidRequest.code, "broker 7 does not exist")


async def test_an_error_is_raised_where_the_response_cannot_report_it() -> None:
    async def elect(_request: ElectLeadersRequest, _context: RequestContext) -> ElectLeadersResponse:
        raise InvalidRequest

    async def delete(_request: DeleteTopicsRequest, _context: RequestContext) -> DeleteTopicsResponse:
        raise InvalidRequest

    response = await RequestHandler(apis.ELECT_LEADERS, elect).handle(ElectLeadersRequest(), context(1))
    assert response is not None
    assert response.error_code == InvalidRequest.code
    with pytest.raises(InvalidRequest):  # version 0 has no error code
        await RequestHandler(apis.ELECT_LEADERS, elect).handle(ElectLeadersRequest(), context(0))
    with pytest.raises(InvalidRequest):
        await RequestHandler(apis.DELETE_TOPICS, delete).handle(DeleteTopicsRequest(), context(6))


def test_frequent_requests_are_handled_without_another_coroutine() -> None:
    async def fetch(_request: FetchRequest, _context: RequestContext) -> FetchResponse:
        return FetchResponse()

    assert RequestHandler(apis.FETCH, fetch).handle is fetch


def test_an_error_is_reported_in_a_part_of_a_response() -> None:
    result = PartitionResult(partition_id=3)
    with ReportErrors(result):
        raise NotLeader("broker 2 is the leader")
    assert result == PartitionResult(3, NotLeader.code, "broker 2 is the leader")


def test_a_part_without_an_error_message_gets_the_code_only() -> None:
    result = DeleteRecordsPartitionResult(partition_index=3, low_watermark=-1)
    with ReportErrors(result):
        raise NotLeader
    assert result.error_code == NotLeader.code


def test_other_exceptions_are_not_reported() -> None:
    result = PartitionResult(partition_id=3)
    with pytest.raises(ZeroDivisionError), ReportErrors(result):
        raise ZeroDivisionError
    assert result.error_code == 0
