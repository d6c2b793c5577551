from braidmq.client import (
    AccessRefused as AccessRefused,
)
from braidmq.client import (
    AlreadySettled as AlreadySettled,
)
from braidmq.client import (
    Application as Application,
)
from braidmq.client import (
    BadAddress as BadAddress,
)
from braidmq.client import (
    BadMetadata as BadMetadata,
)
from braidmq.client import (
    BadRequest as BadRequest,
)
from braidmq.client import (
    Batch as Batch,
)
from braidmq.client import (
    Blocked as Blocked,
)
from braidmq.client import (
    BraidError as BraidError,
)
from braidmq.client import (
    Broker as Broker,
)
from braidmq.client import (
    CallFailed as CallFailed,
)
from braidmq.client import (
    CallTimedOut as CallTimedOut,
)
from braidmq.client import (
    ChannelClosed as ChannelClosed,
)
from braidmq.client import (
    ClientError as ClientError,
)
from braidmq.client import (
    Closed as Closed,
)
from braidmq.client import (
    Confirm as Confirm,
)
from braidmq.client import (
    Conflict as Conflict,
)
from braidmq.client import (
    ConnectFailed as ConnectFailed,
)
from braidmq.client import (
    ConnectionLost as ConnectionLost,
)
from braidmq.client import (
    Consumer as Consumer,
)
from braidmq.client import (
    ConsumerCancelled as ConsumerCancelled,
)
from braidmq.client import (
    DeliveryTimedOut as DeliveryTimedOut,
)
from braidmq.client import (
    Failure as Failure,
)
from braidmq.client import (
    HttpError as HttpError,
)
from braidmq.client import (
    Message as Message,
)
from braidmq.client import (
    Nacked as Nacked,
)
from braidmq.client import (
    NotAuthenticated as NotAuthenticated,
)
from braidmq.client import (
    NotFound as NotFound,
)
from braidmq.client import (
    NotInFlight as NotInFlight,
)
from braidmq.client import (
    NotYourTransaction as NotYourTransaction,
)
from braidmq.client import (
    OtherInstance as OtherInstance,
)
from braidmq.client import (
    OutOfOrderSequence as OutOfOrderSequence,
)
from braidmq.client import (
    Place as Place,
)
from braidmq.client import (
    Producer as Producer,
)
from braidmq.client import (
    ProducerFenced as ProducerFenced,
)
from braidmq.client import (
    PublishError as PublishError,
)
from braidmq.client import (
    PublishFailed as PublishFailed,
)
from braidmq.client import (
    PublishRefused as PublishRefused,
)
from braidmq.client import (
    Queue as Queue,
)
from braidmq.client import (
    StaleApplication as StaleApplication,
)
from braidmq.client import (
    StoredMessage as StoredMessage,
)
from braidmq.client import (
    SyncBroker as SyncBroker,
)
from braidmq.client import (
    SyncConsumer as SyncConsumer,
)
from braidmq.client import (
    SyncProducer as SyncProducer,
)
from braidmq.client import (
    SyncTransaction as SyncTransaction,
)
from braidmq.client import (
    TooManyBranches as TooManyBranches,
)
from braidmq.client import (
    Transaction as Transaction,
)
from braidmq.client import (
    TransactionAborted as TransactionAborted,
)
from braidmq.client import (
    TransactionCommitted as TransactionCommitted,
)
from braidmq.client import (
    TransactionCommitting as TransactionCommitting,
)
from braidmq.client import (
    TransactionError as TransactionError,
)
from braidmq.client import (
    UnknownBranch as UnknownBranch,
)
from braidmq.client import (
    UnknownPartition as UnknownPartition,
)
from braidmq.client import (
    UnknownProducer as UnknownProducer,
)
from braidmq.client import (
    UnknownTransaction as UnknownTransaction,
)
from braidmq.client import (
    Unroutable as Unroutable,
)
from braidmq.client import (
    Unsupported as Unsupported,
)
from braidmq.client import (
    WindowFull as WindowFull,
)
from braidmq.client import (
    connect as connect,
)
from braidmq.client import (
    connect_sync as connect_sync,
)

__version__: str
__all__: list[str]
