"""Keys are partitioned as by Kafka's clients; records without keys use a sticky partition."""

from __future__ import annotations

from aiokafka.partitioner import murmur2 as kafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.produce.partitioner import StickyPartitioner, murmur2, murmur2_in_python, partition_for_key
from headrace.testkit.entropy import SeededEntropy


@given(st.binary(max_size=200))
def test_the_hash_is_that_of_kafkas_clients(key: bytes) -> None:
    """By the compiled library, where it was built, and in Python."""
    assert murmur2(key) == murmur2_in_python(key) == kafka_murmur2(key) & 0xFFFFFFFF


def test_known_keys_have_known_hashes() -> None:
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF


@given(key=st.binary(), count=st.integers(1, 1000))
def test_a_key_always_has_a_partition_and_always_the_same(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count
    assert partition_for_key(key, count) == partition_for_key(key, count)


def test_the_sticky_partition_stays_until_it_is_switched() -> None:
    sticky = StickyPartitioner(SeededEntropy(1))
    first = sticky.choose("t", 4)
    assert {sticky.choose("t", 4) for _ in range(10)} == {first}
    assert sticky.move_on("t", 4) != first


def test_with_one_partition_switching_has_no_effect() -> None:
    sticky = StickyPartitioner(SeededEntropy(1))
    assert sticky.choose("t", 1) == 0
    assert sticky.move_on("t", 1) == 0


def test_a_topic_recreated_with_fewer_partitions_is_handled() -> None:
    sticky = StickyPartitioner(SeededEntropy(3))
    while sticky.choose("t", 9) < 2:
        sticky.move_on("t", 9)
    assert 0 <= sticky.choose("t", 2) < 2
