"""The table of APIs: which messages belong to a key, and in which versions we know them.

Whether a key is served is the broker's business; a key that is not in this table cannot be.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

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
    advertised_min: int

    def knows(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_since else 1

    def response_header_version(self, version: int) -> int:
        # A client must be able to read the answer before it knows which versions we speak.
        if self.key == API_VERSIONS:
            return 0
        return 1 if version >= self.flexible_since else 0


Request = TypeVar("Request")
Response = TypeVar("Response")


class ApiKey(int, Generic[Request, Response]):
    """The key of an API. Its type parameters let mypy check that a handler has the messages of its API."""


APIS: Final[dict[int, Api]] = {}


def _api(
    key: int, request: type[Request], response: type[Response], *, advertised_min: int | None = None
) -> ApiKey[Request, Response]:
    """Add an API to the table, and return its key."""
    declared = layout(request)
    APIS[key] = Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=declared.min_version,
        max_version=declared.max_version,
        flexible_since=declared.flexible_since,
        advertised_min=declared.min_version if advertised_min is None else advertised_min,
    )
    return ApiKey(key)


# Older librdkafka stops compressing without notice unless Produce 0 is advertised. A request of that version fails.
PRODUCE: Final = _api(0, produce.ProduceRequest, produce.ProduceResponse, advertised_min=0)
FETCH: Final = _api(1, fetch.FetchRequest, fetch.FetchResponse)
LIST_OFFSETS: Final = _api(2, fetch.ListOffsetsRequest, fetch.ListOffsetsResponse)
METADATA: Final = _api(3, metadata.MetadataRequest, metadata.MetadataResponse)
OFFSET_COMMIT: Final = _api(8, group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse)
OFFSET_FETCH: Final = _api(9, group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse)
FIND_COORDINATOR: Final = _api(10, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse)
JOIN_GROUP: Final = _api(11, groups.JoinGroupRequest, groups.JoinGroupResponse)
HEARTBEAT: Final = _api(12, groups.HeartbeatRequest, groups.HeartbeatResponse)
LEAVE_GROUP: Final = _api(13, groups.LeaveGroupRequest, groups.LeaveGroupResponse)
SYNC_GROUP: Final = _api(14, groups.SyncGroupRequest, groups.SyncGroupResponse)
DESCRIBE_GROUPS: Final = _api(15, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse)
LIST_GROUPS: Final = _api(16, groups.ListGroupsRequest, groups.ListGroupsResponse)
SASL_HANDSHAKE: Final = _api(17, security.SaslHandshakeRequest, security.SaslHandshakeResponse)
API_VERSIONS: Final = _api(18, metadata.ApiVersionsRequest, metadata.ApiVersionsResponse)
CREATE_TOPICS: Final = _api(19, topics.CreateTopicsRequest, topics.CreateTopicsResponse)
DELETE_TOPICS: Final = _api(20, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse)
DELETE_RECORDS: Final = _api(21, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse)
INIT_PRODUCER_ID: Final = _api(22, transactions.InitProducerIdRequest, transactions.InitProducerIdResponse)
OFFSET_FOR_LEADER_EPOCH: Final = _api(23, fetch.OffsetForLeaderEpochRequest, fetch.OffsetForLeaderEpochResponse)
ADD_PARTITIONS_TO_TXN: Final = _api(24, transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse)
ADD_OFFSETS_TO_TXN: Final = _api(25, transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse)
END_TXN: Final = _api(26, transactions.EndTxnRequest, transactions.EndTxnResponse)
WRITE_TXN_MARKERS: Final = _api(27, transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse)
TXN_OFFSET_COMMIT: Final = _api(28, group_offsets.TxnOffsetCommitRequest, group_offsets.TxnOffsetCommitResponse)
DESCRIBE_ACLS: Final = _api(29, security.DescribeAclsRequest, security.DescribeAclsResponse)
CREATE_ACLS: Final = _api(30, security.CreateAclsRequest, security.CreateAclsResponse)
DELETE_ACLS: Final = _api(31, security.DeleteAclsRequest, security.DeleteAclsResponse)
DESCRIBE_CONFIGS: Final = _api(32, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse)
ALTER_CONFIGS: Final = _api(33, configs.AlterConfigsRequest, configs.AlterConfigsResponse)
DESCRIBE_LOG_DIRS: Final = _api(35, replicas.DescribeLogDirsRequest, replicas.DescribeLogDirsResponse)
CREATE_PARTITIONS: Final = _api(37, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse)
DELETE_GROUPS: Final = _api(42, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse)
ELECT_LEADERS: Final = _api(43, replicas.ElectLeadersRequest, replicas.ElectLeadersResponse)
INCREMENTAL_ALTER_CONFIGS: Final = _api(
    44, configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse
)
ALTER_PARTITION_REASSIGNMENTS: Final = _api(
    45, replicas.AlterPartitionReassignmentsRequest, replicas.AlterPartitionReassignmentsResponse
)
LIST_PARTITION_REASSIGNMENTS: Final = _api(
    46, replicas.ListPartitionReassignmentsRequest, replicas.ListPartitionReassignmentsResponse
)
OFFSET_DELETE: Final = _api(47, group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse)
DESCRIBE_CLIENT_QUOTAS: Final = _api(48, security.DescribeClientQuotasRequest, security.DescribeClientQuotasResponse)
ALTER_CLIENT_QUOTAS: Final = _api(49, security.AlterClientQuotasRequest, security.AlterClientQuotasResponse)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = _api(
    50, security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse
)
ALTER_USER_SCRAM_CREDENTIALS: Final = _api(
    51, security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse
)
DESCRIBE_QUORUM: Final = _api(55, metadata.DescribeQuorumRequest, metadata.DescribeQuorumResponse)
UPDATE_FEATURES: Final = _api(57, metadata.UpdateFeaturesRequest, metadata.UpdateFeaturesResponse)
DESCRIBE_CLUSTER: Final = _api(60, metadata.DescribeClusterRequest, metadata.DescribeClusterResponse)
DESCRIBE_PRODUCERS: Final = _api(61, transactions.DescribeProducersRequest, transactions.DescribeProducersResponse)
DESCRIBE_TRANSACTIONS: Final = _api(
    65, transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse
)
LIST_TRANSACTIONS: Final = _api(66, transactions.ListTransactionsRequest, transactions.ListTransactionsResponse)
CONSUMER_GROUP_HEARTBEAT: Final = _api(
    68, consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse
)
CONSUMER_GROUP_DESCRIBE: Final = _api(
    69, consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse
)
LIST_CONFIG_RESOURCES: Final = _api(74, configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse)
DESCRIBE_TOPIC_PARTITIONS: Final = _api(
    75, metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse
)
SHARE_GROUP_HEARTBEAT: Final = _api(
    76, share_groups.ShareGroupHeartbeatRequest, share_groups.ShareGroupHeartbeatResponse
)
SHARE_GROUP_DESCRIBE: Final = _api(77, share_groups.ShareGroupDescribeRequest, share_groups.ShareGroupDescribeResponse)
SHARE_FETCH: Final = _api(78, share_groups.ShareFetchRequest, share_groups.ShareFetchResponse)
SHARE_ACKNOWLEDGE: Final = _api(79, share_groups.ShareAcknowledgeRequest, share_groups.ShareAcknowledgeResponse)
DESCRIBE_SHARE_GROUP_OFFSETS: Final = _api(
    90, share_groups.DescribeShareGroupOffsetsRequest, share_groups.DescribeShareGroupOffsetsResponse
)
ALTER_SHARE_GROUP_OFFSETS: Final = _api(
    91, share_groups.AlterShareGroupOffsetsRequest, share_groups.AlterShareGroupOffsetsResponse
)
DELETE_SHARE_GROUP_OFFSETS: Final = _api(
    92, share_groups.DeleteShareGroupOffsetsRequest, share_groups.DeleteShareGroupOffsetsResponse
)
OWN_KEYS: Final = 10_000  # our own keys begin here, as our own error codes do
DRAIN_BROKER: Final = _api(10_000, replicas.DrainBrokerRequest, replicas.DrainBrokerResponse)
LEASE: Final = _api(10_001, queues.LeaseRequest, queues.LeaseResponse)
SETTLE: Final = _api(10_002, queues.SettleRequest, queues.SettleResponse)
DESCRIBE_SUBSCRIPTIONS: Final = _api(10_003, queues.DescribeSubscriptionsRequest, queues.DescribeSubscriptionsResponse)
ALTER_SUBSCRIPTIONS: Final = _api(10_004, queues.AlterSubscriptionsRequest, queues.AlterSubscriptionsResponse)
MESSAGE_STATUS: Final = _api(10_005, queues.MessageStatusRequest, queues.MessageStatusResponse)
LIST_DELAYED: Final = _api(10_006, delays.ListDelayedRequest, delays.ListDelayedResponse)
ALTER_DELAYED: Final = _api(10_007, delays.AlterDelayedRequest, delays.AlterDelayedResponse)
LEASE_OFFSETS: Final = _api(10_008, queues.LeaseOffsetsRequest, queues.LeaseOffsetsResponse)
CHECK_TOKEN: Final = _api(10_009, tokens.CheckTokenRequest, tokens.CheckTokenResponse)
ALTER_TOKENS: Final = _api(10_010, tokens.AlterTokensRequest, tokens.AlterTokensResponse)
LIST_TOKENS: Final = _api(10_011, tokens.ListTokensRequest, tokens.ListTokensResponse)
DESCRIBE_PUSHES: Final = _api(10_012, queues.DescribePushesRequest, queues.DescribePushesResponse)
DESCRIBE_BUNDLE: Final = _api(10_013, transactions.DescribeBundleRequest, transactions.DescribeBundleResponse)
END_BUNDLE: Final = _api(10_014, transactions.EndBundleRequest, transactions.EndBundleResponse)
REDRIVE_MESSAGES: Final = _api(10_015, queues.RedriveMessagesRequest, queues.RedriveMessagesResponse)
