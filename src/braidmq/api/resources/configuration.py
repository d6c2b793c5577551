"""The configuration that a node runs with, and reading it again."""

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from braidmq.api.endpoints import Call, operation
from braidmq.api.requests import note
from braidmq.model.errors import BadSetting, NotFound
from braidmq.security.rights import ADMINISTRATOR


class SettingChange(msgspec.Struct, frozen=True):
    """A key, as it was and as it is to be; in TOML, secrets masked."""

    key: Annotated[str, Meta(description="As `log.level`")]
    before: str
    after: str


class Reloaded(msgspec.Struct, frozen=True):
    """What reading the configuration again led to."""

    changed: Annotated[list[SettingChange], Meta(description="In force")]
    restart: Annotated[
        list[SettingChange], Meta(description="Not in force before the node is started again")
    ]


class Reloader(Protocol):
    async def reload(self) -> Reloaded:
        """Raises BadSetting, and then nothing has changed."""


class Configuration:
    def __init__(self, reloader: Reloader | None) -> None:
        self._reloader = reloader

    @operation(
        "POST",
        "/v1/config/reload",
        right=ADMINISTRATOR,
        tag="node",
        errors=(BadSetting, NotFound),
    )
    async def reload_configuration(self, call: Call) -> Reloaded:
        """Read the configuration again.

        File and environment as the node was started with them, and certificates with all that
        belongs to them. If anything is wrong, nothing changes. Connections go on.
        """
        if self._reloader is None:
            raise NotFound("this node was not started with a configuration")
        found = await self._reloader.reload()
        note(
            settings=[each.key for each in found.changed],
            after_restart=[each.key for each in found.restart],
        )
        return found
