"""Batches made of batches."""

from braidmq.record.batch import RecordBatch


def single(batch: RecordBatch, index: int) -> RecordBatch:
    """One record of a batch as a batch of its own."""
    if batch.count == 1:
        return batch
    data = memoryview(batch)[batch.position_at(index) : batch.position_at(index + 1)]
    return RecordBatch.scan(bytes(data), base_offset=0, verify=False)


def copied(batch: RecordBatch) -> RecordBatch:
    """For another append: a batch belongs to the log it was appended to."""
    return RecordBatch.scan(bytes(memoryview(batch)), base_offset=0, verify=False)
