"""The table of APIs: the messages and the known versions of each API key.

The broker decides which of them it serves.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.wire.codec.schema import layout
from headrace.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.wire.messages.delays import (
    AlterDelayedRequest,
    AlterDelayedResponse,
    ListDelayedRequest,
    ListDelayedResponse,
)
from headrace.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from headrace.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.wire.messages.produce import ProduceRequest, ProduceResponse
from headrace.wire.messages.queues import (
    AlterSubscriptionsRequest,
    AlterSubscriptionsResponse,
    DescribePushesRequest,
    DescribePushesResponse,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsResponse,
    LeaseOffsetsRequest,
    LeaseOffsetsResponse,
    LeaseRequest,
    LeaseResponse,
    MessageStatusRequest,
    MessageStatusResponse,
    SettleRequest,
    SettleResponse,
)
from headrace.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DrainBrokerRequest,
    DrainBrokerResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.wire.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headrace.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from headrace.wire.messages.tokens import (
    AlterTokensRequest,
    AlterTokensResponse,
    CheckTokenRequest,
    CheckTokenResponse,
    ListTokensRequest,
    ListTokensResponse,
)
from headrace.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeBundleRequest,
    DescribeBundleResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndBundleRequest,
    EndBundleResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class Api(msgspec.Struct, frozen=True):
    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    flexible_since: int
    # Old librdkafka silently disables compression unless Produce v0 is advertised; a request of v0 is rejected.
    advertised_min: int

    def knows(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_since else 1

    def response_header_version(self, version: int) -> int:
        # A client must be able to parse this response before it knows the supported versions.
        if self.key == API_VERSIONS:
            return 0
        return 1 if version >= self.flexible_since else 0


PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
WRITE_TXN_MARKERS: Final = 27
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
DESCRIBE_LOG_DIRS: Final = 35
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
DESCRIBE_QUORUM: Final = 55
UPDATE_FEATURES: Final = 57
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
ALTER_SHARE_GROUP_OFFSETS: Final = 91
DELETE_SHARE_GROUP_OFFSETS: Final = 92
OWN_KEYS: Final = 10_000  # the first API key and error code of Headrace
DRAIN_BROKER: Final = 10_000
LEASE: Final = 10_001
SETTLE: Final = 10_002
DESCRIBE_SUBSCRIPTIONS: Final = 10_003
ALTER_SUBSCRIPTIONS: Final = 10_004
MESSAGE_STATUS: Final = 10_005
LIST_DELAYED: Final = 10_006
ALTER_DELAYED: Final = 10_007
LEASE_OFFSETS: Final = 10_008
CHECK_TOKEN: Final = 10_009
ALTER_TOKENS: Final = 10_010
LIST_TOKENS: Final = 10_011
DESCRIBE_PUSHES: Final = 10_012
DESCRIBE_BUNDLE: Final = 10_013
END_BUNDLE: Final = 10_014


def _api(key: int, request: type[Any], response: type[Any]) -> Api:
    declared = layout(request)
    return Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=declared.min_version,
        max_version=declared.max_version,
        flexible_since=declared.flexible_since,
        advertised_min=0 if key == PRODUCE else declared.min_version,
    )


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        _api(PRODUCE, ProduceRequest, ProduceResponse),
        _api(FETCH, FetchRequest, FetchResponse),
        _api(LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
        _api(METADATA, MetadataRequest, MetadataResponse),
        _api(OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse),
        _api(OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse),
        _api(FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse),
        _api(JOIN_GROUP, JoinGroupRequest, JoinGroupResponse),
        _api(HEARTBEAT, HeartbeatRequest, HeartbeatResponse),
        _api(LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse),
        _api(SYNC_GROUP, SyncGroupRequest, SyncGroupResponse),
        _api(DESCRIBE_GROUPS, DescribeGroupsRequest, DescribeGroupsResponse),
        _api(LIST_GROUPS, ListGroupsRequest, ListGroupsResponse),
        _api(SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse),
        _api(API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
        _api(CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
        _api(DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
        _api(DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse),
        _api(INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
        _api(OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        _api(ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
        _api(ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
        _api(END_TXN, EndTxnRequest, EndTxnResponse),
        _api(WRITE_TXN_MARKERS, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
        _api(TXN_OFFSET_COMMIT, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
        _api(DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse),
        _api(CREATE_ACLS, CreateAclsRequest, CreateAclsResponse),
        _api(DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse),
        _api(DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
        _api(ALTER_CONFIGS, AlterConfigsRequest, AlterConfigsResponse),
        _api(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse),
        _api(CREATE_PARTITIONS, CreatePartitionsRequest, CreatePartitionsResponse),
        _api(DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse),
        _api(ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse),
        _api(INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        _api(ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
        _api(LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
        _api(OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse),
        _api(DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
        _api(ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest, AlterClientQuotasResponse),
        _api(
            DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
        ),
        _api(ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
        _api(DESCRIBE_QUORUM, DescribeQuorumRequest, DescribeQuorumResponse),
        _api(UPDATE_FEATURES, UpdateFeaturesRequest, UpdateFeaturesResponse),
        _api(DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse),
        _api(DESCRIBE_PRODUCERS, DescribeProducersRequest, DescribeProducersResponse),
        _api(DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest, DescribeTransactionsResponse),
        _api(LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse),
        _api(CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
        _api(CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
        _api(LIST_CONFIG_RESOURCES, ListConfigResourcesRequest, ListConfigResourcesResponse),
        _api(DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
        _api(SHARE_GROUP_HEARTBEAT, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
        _api(SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest, ShareGroupDescribeResponse),
        _api(SHARE_FETCH, ShareFetchRequest, ShareFetchResponse),
        _api(SHARE_ACKNOWLEDGE, ShareAcknowledgeRequest, ShareAcknowledgeResponse),
        _api(DESCRIBE_SHARE_GROUP_OFFSETS, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
        _api(ALTER_SHARE_GROUP_OFFSETS, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
        _api(DELETE_SHARE_GROUP_OFFSETS, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
        _api(DRAIN_BROKER, DrainBrokerRequest, DrainBrokerResponse),
        _api(LEASE, LeaseRequest, LeaseResponse),
        _api(SETTLE, SettleRequest, SettleResponse),
        _api(DESCRIBE_SUBSCRIPTIONS, DescribeSubscriptionsRequest, DescribeSubscriptionsResponse),
        _api(ALTER_SUBSCRIPTIONS, AlterSubscriptionsRequest, AlterSubscriptionsResponse),
        _api(MESSAGE_STATUS, MessageStatusRequest, MessageStatusResponse),
        _api(LIST_DELAYED, ListDelayedRequest, ListDelayedResponse),
        _api(ALTER_DELAYED, AlterDelayedRequest, AlterDelayedResponse),
        _api(LEASE_OFFSETS, LeaseOffsetsRequest, LeaseOffsetsResponse),
        _api(CHECK_TOKEN, CheckTokenRequest, CheckTokenResponse),
        _api(ALTER_TOKENS, AlterTokensRequest, AlterTokensResponse),
        _api(LIST_TOKENS, ListTokensRequest, ListTokensResponse),
        _api(DESCRIBE_PUSHES, DescribePushesRequest, DescribePushesResponse),
        _api(DESCRIBE_BUNDLE, DescribeBundleRequest, DescribeBundleResponse),
        _api(END_BUNDLE, EndBundleRequest, EndBundleResponse),
    )
}
