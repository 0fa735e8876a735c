"""The table of APIs: which messages belong to a key, and in which versions we know them.

Whether a key is served is the broker's business; a key that is not in this table cannot be.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

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
PRODUCE: Final = _api(0, ProduceRequest, ProduceResponse, advertised_min=0)
FETCH: Final = _api(1, FetchRequest, FetchResponse)
LIST_OFFSETS: Final = _api(2, ListOffsetsRequest, ListOffsetsResponse)
METADATA: Final = _api(3, MetadataRequest, MetadataResponse)
OFFSET_COMMIT: Final = _api(8, OffsetCommitRequest, OffsetCommitResponse)
OFFSET_FETCH: Final = _api(9, OffsetFetchRequest, OffsetFetchResponse)
FIND_COORDINATOR: Final = _api(10, FindCoordinatorRequest, FindCoordinatorResponse)
JOIN_GROUP: Final = _api(11, JoinGroupRequest, JoinGroupResponse)
HEARTBEAT: Final = _api(12, HeartbeatRequest, HeartbeatResponse)
LEAVE_GROUP: Final = _api(13, LeaveGroupRequest, LeaveGroupResponse)
SYNC_GROUP: Final = _api(14, SyncGroupRequest, SyncGroupResponse)
DESCRIBE_GROUPS: Final = _api(15, DescribeGroupsRequest, DescribeGroupsResponse)
LIST_GROUPS: Final = _api(16, ListGroupsRequest, ListGroupsResponse)
SASL_HANDSHAKE: Final = _api(17, SaslHandshakeRequest, SaslHandshakeResponse)
API_VERSIONS: Final = _api(18, ApiVersionsRequest, ApiVersionsResponse)
CREATE_TOPICS: Final = _api(19, CreateTopicsRequest, CreateTopicsResponse)
DELETE_TOPICS: Final = _api(20, DeleteTopicsRequest, DeleteTopicsResponse)
DELETE_RECORDS: Final = _api(21, DeleteRecordsRequest, DeleteRecordsResponse)
INIT_PRODUCER_ID: Final = _api(22, InitProducerIdRequest, InitProducerIdResponse)
OFFSET_FOR_LEADER_EPOCH: Final = _api(23, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse)
ADD_PARTITIONS_TO_TXN: Final = _api(24, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse)
ADD_OFFSETS_TO_TXN: Final = _api(25, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse)
END_TXN: Final = _api(26, EndTxnRequest, EndTxnResponse)
WRITE_TXN_MARKERS: Final = _api(27, WriteTxnMarkersRequest, WriteTxnMarkersResponse)
TXN_OFFSET_COMMIT: Final = _api(28, TxnOffsetCommitRequest, TxnOffsetCommitResponse)
DESCRIBE_ACLS: Final = _api(29, DescribeAclsRequest, DescribeAclsResponse)
CREATE_ACLS: Final = _api(30, CreateAclsRequest, CreateAclsResponse)
DELETE_ACLS: Final = _api(31, DeleteAclsRequest, DeleteAclsResponse)
DESCRIBE_CONFIGS: Final = _api(32, DescribeConfigsRequest, DescribeConfigsResponse)
ALTER_CONFIGS: Final = _api(33, AlterConfigsRequest, AlterConfigsResponse)
DESCRIBE_LOG_DIRS: Final = _api(35, DescribeLogDirsRequest, DescribeLogDirsResponse)
CREATE_PARTITIONS: Final = _api(37, CreatePartitionsRequest, CreatePartitionsResponse)
DELETE_GROUPS: Final = _api(42, DeleteGroupsRequest, DeleteGroupsResponse)
ELECT_LEADERS: Final = _api(43, ElectLeadersRequest, ElectLeadersResponse)
INCREMENTAL_ALTER_CONFIGS: Final = _api(44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse)
ALTER_PARTITION_REASSIGNMENTS: Final = _api(45, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
LIST_PARTITION_REASSIGNMENTS: Final = _api(46, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse)
OFFSET_DELETE: Final = _api(47, OffsetDeleteRequest, OffsetDeleteResponse)
DESCRIBE_CLIENT_QUOTAS: Final = _api(48, DescribeClientQuotasRequest, DescribeClientQuotasResponse)
ALTER_CLIENT_QUOTAS: Final = _api(49, AlterClientQuotasRequest, AlterClientQuotasResponse)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = _api(
    50, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
)
ALTER_USER_SCRAM_CREDENTIALS: Final = _api(51, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse)
DESCRIBE_QUORUM: Final = _api(55, DescribeQuorumRequest, DescribeQuorumResponse)
UPDATE_FEATURES: Final = _api(57, UpdateFeaturesRequest, UpdateFeaturesResponse)
DESCRIBE_CLUSTER: Final = _api(60, DescribeClusterRequest, DescribeClusterResponse)
DESCRIBE_PRODUCERS: Final = _api(61, DescribeProducersRequest, DescribeProducersResponse)
DESCRIBE_TRANSACTIONS: Final = _api(65, DescribeTransactionsRequest, DescribeTransactionsResponse)
LIST_TRANSACTIONS: Final = _api(66, ListTransactionsRequest, ListTransactionsResponse)
CONSUMER_GROUP_HEARTBEAT: Final = _api(68, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse)
CONSUMER_GROUP_DESCRIBE: Final = _api(69, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse)
LIST_CONFIG_RESOURCES: Final = _api(74, ListConfigResourcesRequest, ListConfigResourcesResponse)
DESCRIBE_TOPIC_PARTITIONS: Final = _api(75, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse)
SHARE_GROUP_HEARTBEAT: Final = _api(76, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse)
SHARE_GROUP_DESCRIBE: Final = _api(77, ShareGroupDescribeRequest, ShareGroupDescribeResponse)
SHARE_FETCH: Final = _api(78, ShareFetchRequest, ShareFetchResponse)
SHARE_ACKNOWLEDGE: Final = _api(79, ShareAcknowledgeRequest, ShareAcknowledgeResponse)
DESCRIBE_SHARE_GROUP_OFFSETS: Final = _api(90, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse)
ALTER_SHARE_GROUP_OFFSETS: Final = _api(91, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse)
DELETE_SHARE_GROUP_OFFSETS: Final = _api(92, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse)
OWN_KEYS: Final = 10_000  # our own keys begin here, as our own error codes do
DRAIN_BROKER: Final = _api(10_000, DrainBrokerRequest, DrainBrokerResponse)
LEASE: Final = _api(10_001, LeaseRequest, LeaseResponse)
SETTLE: Final = _api(10_002, SettleRequest, SettleResponse)
DESCRIBE_SUBSCRIPTIONS: Final = _api(10_003, DescribeSubscriptionsRequest, DescribeSubscriptionsResponse)
ALTER_SUBSCRIPTIONS: Final = _api(10_004, AlterSubscriptionsRequest, AlterSubscriptionsResponse)
MESSAGE_STATUS: Final = _api(10_005, MessageStatusRequest, MessageStatusResponse)
LIST_DELAYED: Final = _api(10_006, ListDelayedRequest, ListDelayedResponse)
ALTER_DELAYED: Final = _api(10_007, AlterDelayedRequest, AlterDelayedResponse)
LEASE_OFFSETS: Final = _api(10_008, LeaseOffsetsRequest, LeaseOffsetsResponse)
CHECK_TOKEN: Final = _api(10_009, CheckTokenRequest, CheckTokenResponse)
ALTER_TOKENS: Final = _api(10_010, AlterTokensRequest, AlterTokensResponse)
LIST_TOKENS: Final = _api(10_011, ListTokensRequest, ListTokensResponse)
DESCRIBE_PUSHES: Final = _api(10_012, DescribePushesRequest, DescribePushesResponse)
DESCRIBE_BUNDLE: Final = _api(10_013, DescribeBundleRequest, DescribeBundleResponse)
END_BUNDLE: Final = _api(10_014, EndBundleRequest, EndBundleResponse)
