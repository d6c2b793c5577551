"""The hash of keys: Kafka's murmur2, which decides on partitions, slots and filters of segments.

It stands with the records because jobs that read them need it too, without a broker.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t


def kafka_hash(bytes key not None):
    """Kafka's murmur2 of ``key``, signed as in Java."""
    return <int32_t>murmur2(
        <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


def partition_for(bytes key not None, int32_t partitions):
    """The partition of 0 … ``partitions - 1`` that Kafka's default partitioner gives ``key``."""
    if partitions < 1:
        raise ValueError("a topic has at least one partition")
    return partition_of_hash(
        murmur2(<const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partitions)
