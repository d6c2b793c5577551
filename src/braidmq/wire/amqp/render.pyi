from braidmq.record.batch import RecordBatch
from braidmq.record.buffer import Buffer

def all_amqp(batch: RecordBatch, first: int, stop: int) -> bool: ...
def render_deliveries(
    batch: RecordBatch,
    first: int,
    stop: int,
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    attempts: int,
    frame_max: int,
    partition: int = -1,
) -> bytes: ...
def render_content(
    channel: int, method: bytes, properties: Buffer, body: Buffer, frame_max: int
) -> bytes: ...
