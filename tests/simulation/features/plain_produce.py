"""Produce requests without a producer id, each sent once, like those of a client without idempotence.

The cleaner keeps the last batch of each producer id even without records; these batches are not such.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

NAMES_UNTIL = 12
"""The last version of Produce with topic names; later ones have topic ids."""
TIMEOUT_MS = 3000
ALL, LEADER = -1, 1


async def produce(cluster: Cluster, topic: str, partition: int, records: Sequence[BatchRecord], acks: int) -> int:
    """Send one batch; return its base offset. After an error it may be in the log or not, now or later."""
    data = PartitionProduceData(index=partition, records=memoryview(build_batch(list(records))))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    leader = (await cluster.partition(topic, partition)).leader
    request = ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=topics)
    response: ProduceResponse = await cluster.call(request, node_id=leader, version_max=NAMES_UNTIL)
    partition_response = response.responses[0].partition_responses[0]
    if partition_response.error_code:
        cluster.invalidate_metadata()
    raise_for_code(partition_response.error_code, partition_response.error_message)
    return partition_response.base_offset
