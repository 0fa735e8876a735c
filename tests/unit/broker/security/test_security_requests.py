"""SASL, ACL, quota and SCRAM requests get the responses of a Kafka without security, never a closed connection."""

from __future__ import annotations

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import IllegalSaslState, InvalidRequest, ResourceNotFound, SecurityDisabled
from headrace.wire.messages.security import (
    AclCreation,
    AlterClientQuotasRequest,
    AlteredEntry,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    EntityData,
    OpData,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_client_that_wants_sasl_learns_that_there_is_none(
    simulated_broker: SimulatedBroker, version: int
) -> None:
    response = await simulated_broker.send(SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (response.error_code, response.mechanisms) == (IllegalSaslState.code, [])


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_every_acl_of_a_request_gets_its_own_error(simulated_broker: SimulatedBroker, version: int) -> None:
    described = await simulated_broker.send(DescribeAclsRequest(), version)
    assert (described.error_code, described.resources) == (SecurityDisabled.code, [])
    created = await simulated_broker.send(CreateAclsRequest(creations=[AclCreation(), AclCreation()]), version)
    assert [one.error_code for one in created.results] == [SecurityDisabled.code] * 2
    deleted = await simulated_broker.send(DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()]), version)
    assert [one.error_code for one in deleted.filter_results] == [SecurityDisabled.code] * 2
    assert "Authorization is disabled" in described.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_there_are_no_quotas_and_none_can_be_set(simulated_broker: SimulatedBroker, version: int) -> None:
    described = await simulated_broker.send(DescribeClientQuotasRequest(), version)
    assert (described.error_code, described.entries) == (0, [])
    entity = [EntityData(entity_type="user", entity_name="ann")]
    entry = AlteredEntry(entity=entity, ops=[OpData(key="producer_byte_rate", value=1.0)])
    [altered] = (await simulated_broker.send(AlterClientQuotasRequest(entries=[entry]), version)).entries
    assert (altered.error_code, altered.entity) == (InvalidRequest.code, entity)


async def test_no_user_has_scram_credentials_and_none_can_be_set(simulated_broker: SimulatedBroker) -> None:
    everybody = await simulated_broker.send(DescribeUserScramCredentialsRequest(users=None), 0)
    assert (everybody.error_code, everybody.results) == (0, [])
    [ann] = (await simulated_broker.send(DescribeUserScramCredentialsRequest(users=[UserName(name="ann")]), 0)).results
    assert (ann.user, ann.error_code) == ("ann", ResourceNotFound.code)
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="bob")],
        upsertions=[ScramCredentialUpsertion(name="ann"), ScramCredentialUpsertion(name="bob")],
    )
    results = (await simulated_broker.send(request, 0)).results
    assert [(one.user, one.error_code) for one in results] == [
        ("bob", SecurityDisabled.code),
        ("ann", SecurityDisabled.code),
    ]
