from array import array

from braidmq.gateways.mqtt.connection import MqttConnection
from braidmq.gateways.mqtt.publisher import Publisher
from braidmq.net.tcp import FastPath, TcpLink
from braidmq.runtime.rate_limits import Client

FIRST_ID: int
STOP_ID: int
TARGETS_MAX: int

class Route:
    def __init__(
        self,
        moves: int,
        generation: int,
        version: int = 0,
        targets: list[MqttFastPath] | None = None,
        takes_qos1: bool = False,
    ) -> None: ...
    @property
    def moves(self) -> int: ...
    @property
    def generation(self) -> int: ...

class MqttFastPath(FastPath):
    def __init__(
        self, connection: MqttConnection, link: TcpLink | None, publisher: Publisher
    ) -> None: ...
    def limit(self, client: Client | None) -> None: ...
    def let_go(self) -> None: ...
    def holds(self, number: int) -> bool: ...
    def settle(self, packet_ids: array[int]) -> tuple[array[int], int]: ...
