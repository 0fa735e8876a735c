"""The table of APIs: the messages and the known versions of each API key.

The broker decides which of them it serves.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.wire.codec.schema import layout
from headrace.wire.messages import (
    configs,
    consumer_groups,
    delays,
    fetch,
    group_offsets,
    groups,
    metadata,
    produce,
    queues,
    replicas,
    security,
    share_groups,
    tokens,
    topics,
    transactions,
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
        _api(PRODUCE, produce.ProduceRequest, produce.ProduceResponse),
        _api(FETCH, fetch.FetchRequest, fetch.FetchResponse),
        _api(LIST_OFFSETS, fetch.ListOffsetsRequest, fetch.ListOffsetsResponse),
        _api(METADATA, metadata.MetadataRequest, metadata.MetadataResponse),
        _api(OFFSET_COMMIT, group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse),
        _api(OFFSET_FETCH, group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
        _api(FIND_COORDINATOR, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
        _api(JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse),
        _api(HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse),
        _api(LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
        _api(SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse),
        _api(DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
        _api(LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse),
        _api(SASL_HANDSHAKE, security.SaslHandshakeRequest, security.SaslHandshakeResponse),
        _api(API_VERSIONS, metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
        _api(CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
        _api(DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
        _api(DELETE_RECORDS, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse),
        _api(INIT_PRODUCER_ID, transactions.InitProducerIdRequest, transactions.InitProducerIdResponse),
        _api(OFFSET_FOR_LEADER_EPOCH, fetch.OffsetForLeaderEpochRequest, fetch.OffsetForLeaderEpochResponse),
        _api(ADD_PARTITIONS_TO_TXN, transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
        _api(ADD_OFFSETS_TO_TXN, transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
        _api(END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse),
        _api(WRITE_TXN_MARKERS, transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
        _api(TXN_OFFSET_COMMIT, group_offsets.TxnOffsetCommitRequest, group_offsets.TxnOffsetCommitResponse),
        _api(DESCRIBE_ACLS, security.DescribeAclsRequest, security.DescribeAclsResponse),
        _api(CREATE_ACLS, security.CreateAclsRequest, security.CreateAclsResponse),
        _api(DELETE_ACLS, security.DeleteAclsRequest, security.DeleteAclsResponse),
        _api(DESCRIBE_CONFIGS, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
        _api(ALTER_CONFIGS, configs.AlterConfigsRequest, configs.AlterConfigsResponse),
        _api(DESCRIBE_LOG_DIRS, replicas.DescribeLogDirsRequest, replicas.DescribeLogDirsResponse),
        _api(CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
        _api(DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
        _api(ELECT_LEADERS, replicas.ElectLeadersRequest, replicas.ElectLeadersResponse),
        _api(
            INCREMENTAL_ALTER_CONFIGS, configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse
        ),
        _api(
            ALTER_PARTITION_REASSIGNMENTS,
            replicas.AlterPartitionReassignmentsRequest,
            replicas.AlterPartitionReassignmentsResponse,
        ),
        _api(
            LIST_PARTITION_REASSIGNMENTS,
            replicas.ListPartitionReassignmentsRequest,
            replicas.ListPartitionReassignmentsResponse,
        ),
        _api(OFFSET_DELETE, group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse),
        _api(DESCRIBE_CLIENT_QUOTAS, security.DescribeClientQuotasRequest, security.DescribeClientQuotasResponse),
        _api(ALTER_CLIENT_QUOTAS, security.AlterClientQuotasRequest, security.AlterClientQuotasResponse),
        _api(
            DESCRIBE_USER_SCRAM_CREDENTIALS,
            security.DescribeUserScramCredentialsRequest,
            security.DescribeUserScramCredentialsResponse,
        ),
        _api(
            ALTER_USER_SCRAM_CREDENTIALS,
            security.AlterUserScramCredentialsRequest,
            security.AlterUserScramCredentialsResponse,
        ),
        _api(DESCRIBE_QUORUM, metadata.DescribeQuorumRequest, metadata.DescribeQuorumResponse),
        _api(UPDATE_FEATURES, metadata.UpdateFeaturesRequest, metadata.UpdateFeaturesResponse),
        _api(DESCRIBE_CLUSTER, metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
        _api(DESCRIBE_PRODUCERS, transactions.DescribeProducersRequest, transactions.DescribeProducersResponse),
        _api(
            DESCRIBE_TRANSACTIONS, transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse
        ),
        _api(LIST_TRANSACTIONS, transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
        _api(
            CONSUMER_GROUP_HEARTBEAT,
            consumer_groups.ConsumerGroupHeartbeatRequest,
            consumer_groups.ConsumerGroupHeartbeatResponse,
        ),
        _api(
            CONSUMER_GROUP_DESCRIBE,
            consumer_groups.ConsumerGroupDescribeRequest,
            consumer_groups.ConsumerGroupDescribeResponse,
        ),
        _api(LIST_CONFIG_RESOURCES, configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse),
        _api(
            DESCRIBE_TOPIC_PARTITIONS, metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse
        ),
        _api(SHARE_GROUP_HEARTBEAT, share_groups.ShareGroupHeartbeatRequest, share_groups.ShareGroupHeartbeatResponse),
        _api(SHARE_GROUP_DESCRIBE, share_groups.ShareGroupDescribeRequest, share_groups.ShareGroupDescribeResponse),
        _api(SHARE_FETCH, share_groups.ShareFetchRequest, share_groups.ShareFetchResponse),
        _api(SHARE_ACKNOWLEDGE, share_groups.ShareAcknowledgeRequest, share_groups.ShareAcknowledgeResponse),
        _api(
            DESCRIBE_SHARE_GROUP_OFFSETS,
            share_groups.DescribeShareGroupOffsetsRequest,
            share_groups.DescribeShareGroupOffsetsResponse,
        ),
        _api(
            ALTER_SHARE_GROUP_OFFSETS,
            share_groups.AlterShareGroupOffsetsRequest,
            share_groups.AlterShareGroupOffsetsResponse,
        ),
        _api(
            DELETE_SHARE_GROUP_OFFSETS,
            share_groups.DeleteShareGroupOffsetsRequest,
            share_groups.DeleteShareGroupOffsetsResponse,
        ),
        _api(DRAIN_BROKER, replicas.DrainBrokerRequest, replicas.DrainBrokerResponse),
        _api(LEASE, queues.LeaseRequest, queues.LeaseResponse),
        _api(SETTLE, queues.SettleRequest, queues.SettleResponse),
        _api(DESCRIBE_SUBSCRIPTIONS, queues.DescribeSubscriptionsRequest, queues.DescribeSubscriptionsResponse),
        _api(ALTER_SUBSCRIPTIONS, queues.AlterSubscriptionsRequest, queues.AlterSubscriptionsResponse),
        _api(MESSAGE_STATUS, queues.MessageStatusRequest, queues.MessageStatusResponse),
        _api(LIST_DELAYED, delays.ListDelayedRequest, delays.ListDelayedResponse),
        _api(ALTER_DELAYED, delays.AlterDelayedRequest, delays.AlterDelayedResponse),
        _api(LEASE_OFFSETS, queues.LeaseOffsetsRequest, queues.LeaseOffsetsResponse),
        _api(CHECK_TOKEN, tokens.CheckTokenRequest, tokens.CheckTokenResponse),
        _api(ALTER_TOKENS, tokens.AlterTokensRequest, tokens.AlterTokensResponse),
        _api(LIST_TOKENS, tokens.ListTokensRequest, tokens.ListTokensResponse),
        _api(DESCRIBE_PUSHES, queues.DescribePushesRequest, queues.DescribePushesResponse),
        _api(DESCRIBE_BUNDLE, transactions.DescribeBundleRequest, transactions.DescribeBundleResponse),
        _api(END_BUNDLE, transactions.EndBundleRequest, transactions.EndBundleResponse),
    )
}
