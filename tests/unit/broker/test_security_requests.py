"""SASL, ACLs, quotas and SCRAM: answered as by a Kafka that has none of them, never by a closed connection."""

from __future__ import annotations

import pytest
from tests.unit.broker.house import House

from headrace.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlteredEntry, OpData
from headrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.wire.messages.describe_acls import DescribeAclsRequest
from headrace.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, EntityData
from headrace.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest

ILLEGAL_SASL_STATE, INVALID_REQUEST, SECURITY_DISABLED, RESOURCE_NOT_FOUND = 34, 42, 54, 91


@pytest.mark.parametrize("version", [0, 1])
async def test_a_client_that_wants_sasl_learns_that_there_is_none(house: House, version: int) -> None:
    response = await house.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (response.error_code, response.mechanisms) == (ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_every_rule_of_a_request_is_refused_for_itself(house: House, version: int) -> None:
    described = await house.ask(DescribeAclsRequest(), version)
    assert (described.error_code, described.resources) == (SECURITY_DISABLED, [])
    created = await house.ask(CreateAclsRequest(creations=[AclCreation(), AclCreation()]), version)
    assert [one.error_code for one in created.results] == [SECURITY_DISABLED] * 2
    deleted = await house.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()]), version)
    assert [one.error_code for one in deleted.filter_results] == [SECURITY_DISABLED] * 2
    assert "Authorization is disabled" in described.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_there_are_no_quotas_and_none_can_be_set(house: House, version: int) -> None:
    described = await house.ask(DescribeClientQuotasRequest(), version)
    assert (described.error_code, described.entries) == (0, [])
    entity = [EntityData(entity_type="user", entity_name="ann")]
    entry = AlteredEntry(entity=entity, ops=[OpData(key="producer_byte_rate", value=1.0)])
    [altered] = (await house.ask(AlterClientQuotasRequest(entries=[entry]), version)).entries
    assert (altered.error_code, altered.entity) == (INVALID_REQUEST, entity)


async def test_nobody_has_a_password_and_nobody_gets_one(house: House) -> None:
    everybody = await house.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    assert (everybody.error_code, everybody.results) == (0, [])
    [ann] = (await house.ask(DescribeUserScramCredentialsRequest(users=[UserName(name="ann")]), 0)).results
    assert (ann.user, ann.error_code) == ("ann", RESOURCE_NOT_FOUND)
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="bob")],
        upsertions=[ScramCredentialUpsertion(name="ann"), ScramCredentialUpsertion(name="bob")],
    )
    results = (await house.ask(request, 0)).results
    assert [(one.user, one.error_code) for one in results] == [("bob", SECURITY_DISABLED), ("ann", SECURITY_DISABLED)]
