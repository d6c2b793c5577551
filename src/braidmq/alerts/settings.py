"""What an operator may set about alerts: the table ``alerts`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alerts of dead letters, posted to the webhooks that topics name."""

    window_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="How long dead letters are gathered before they are told of: those of one"
            " topic that died for one reason are one alert.",
        ),
    ] = 1.0
    timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a webhook has for its answer. What it has not taken by then is"
            " posted again, six times in all.",
        ),
    ] = 10.0
    hosts: Annotated[
        str,
        Meta(
            description="Hosts that alerts may be posted to, with commas between them:"
            " hooks.example.com, *.example.com, or * for any. Whoever may configure a topic chooses"
            " its webhook, and it is this node that connects to it."
        ),
    ] = "*"

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        return tuple(each.strip().lower() for each in self.hosts.split(",") if each.strip())
