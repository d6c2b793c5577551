"""Errors as MQTT answers them: the one place where the engine's errors become MQTT's."""

from braidmq.engine.errors import LimitReached
from braidmq.engine.routing.errors import InvalidFilter
from braidmq.model.errors import BraidError, Kind
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError

_BY_KIND = {
    Kind.UNAUTHENTICATED: Reason.BAD_USER_NAME_OR_PASSWORD,
    Kind.FORBIDDEN: Reason.NOT_AUTHORIZED,
    Kind.TOO_LARGE: Reason.PACKET_TOO_LARGE,
    Kind.REFUSED: Reason.SERVER_BUSY,
}


_OF_A_PUBLISH = {
    Reason.PACKET_TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Reason.SERVER_BUSY: Reason.QUOTA_EXCEEDED,
    Reason.UNSPECIFIED_ERROR: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
}
"""What PUBACK and PUBREC can't say, or say better: it is a rule of ours that was not kept, and not
an error of the broker."""


def refusal(error: BraidError) -> MqttError:
    """Why a publish was not taken, as its answer may say it."""
    found = translate(error)
    return MqttError(_OF_A_PUBLISH.get(found.reason, found.reason), str(error))


def translate(error: BraidError) -> MqttError:
    if isinstance(error, MqttError):
        return error
    if isinstance(error, LimitReached):
        return MqttError(Reason.QUOTA_EXCEEDED, str(error))
    if isinstance(error, InvalidFilter):
        return MqttError(Reason.TOPIC_FILTER_INVALID, str(error))
    return MqttError(_BY_KIND.get(error.kind, Reason.UNSPECIFIED_ERROR), str(error))
