"""The tables of the configuration, and the names of their keys everywhere else."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from braidmq.alerts.settings import AlertSettings
from braidmq.api.settings import HttpSettings
from braidmq.audit.settings import AuditSettings
from braidmq.engine.pressure import Watermarks
from braidmq.engine.settings import RetentionSettings
from braidmq.gateways.amqp.settings import AmqpSettings, UnconfirmedLimit
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.logs import LogSettings
from braidmq.metrics.settings import MetricsSettings
from braidmq.net.settings import ListenerSettings
from braidmq.net.tls_settings import TlsSettings
from braidmq.runtime.rate_settings import RateSettings
from braidmq.runtime.usage import UsageSettings
from braidmq.security.jwt_settings import JwtSettings
from braidmq.storage.settings import StorageSettings

VARIABLE_PREFIX = "BRAID_"
UNCONFIRMED = UnconfirmedLimit()


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node as a whole."""

    data_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Where messages are kept; made if missing. One node per directory."
            " Confirms are as fast as this disk can sync.",
        ),
    ] = "./data"
    dev: Annotated[
        bool,
        Meta(
            description="Development node: lets anyone in with any user and password, and lets"
            " them do everything."
        ),
    ] = False
    shutdown_deadline_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a node that was told to stop waits for consumers to answer for"
            " what they have, and for requests under way. Docker kills after 10 s.",
        ),
    ] = 8.0


class LimitSettings(Watermarks, frozen=True, forbid_unknown_fields=True):
    """When publishers are held back, so that consumers can drain before memory or disk runs out."""

    unconfirmed_messages_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages one publisher may have sent and not yet been told of; then it is"
            " not read from.",
        ),
    ] = UNCONFIRMED.messages
    unconfirmed_bytes_max: Annotated[
        int, Meta(ge=1, description="The same in bytes of their bodies.")
    ] = UNCONFIRMED.bytes

    @property
    def unconfirmed(self) -> UnconfirmedLimit:
        return UnconfirmedLimit(self.unconfirmed_messages_max, self.unconfirmed_bytes_max)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeSettings = NodeSettings()
    listeners: ListenerSettings = ListenerSettings()
    tls: TlsSettings = TlsSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    rates: RateSettings = RateSettings()
    retention: RetentionSettings = RetentionSettings()
    amqp: AmqpSettings = AmqpSettings()
    mqtt: MqttSettings = MqttSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    alerts: AlertSettings = AlertSettings()
    usage: UsageSettings = UsageSettings()
    jwt: JwtSettings = JwtSettings()
    audit: AuditSettings = AuditSettings()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type for field in msgspec.structs.fields(Config)
}


class Key(NamedTuple):
    """One thing that can be set."""

    section: str
    name: str
    type: Any
    default: Any
    meta: Meta

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"{VARIABLE_PREFIX}{self.section}_{self.name}".upper()

    @property
    def is_list(self) -> bool:
        """Of tables, as ``[[listeners.entries]]``."""
        return get_origin(get_args(self.type)[0]) is tuple


def keys_of(section: str) -> list[Key]:
    return keys_in(section, SECTIONS[section])


def keys_in(section: str, table: type[msgspec.Struct]) -> list[Key]:
    found = []
    for field in msgspec.structs.fields(table):
        meta = next(each for each in get_args(field.type) if isinstance(each, Meta))
        found.append(Key(section, field.name, field.type, field.default, meta))
    return found


def all_keys() -> Iterator[Key]:
    for section in SECTIONS:
        yield from keys_of(section)


def flag_of(key: str) -> str:
    """``listeners.http_port`` is set by ``--http-port``."""
    return "--" + key.rpartition(".")[2].replace("_", "-")
