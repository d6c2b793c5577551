"""The engine, for who only looks: nothing here changes anything, gathers or schedules."""

from braidmq.engine.engine import Engine
from braidmq.engine.routing.router import Router


class EngineView:
    def __init__(self, engine: Engine) -> None:
        self.state = engine.state
        self.store = engine.store
        self.pressure = engine.pressure
        self._exchanges = engine.exchanges

    def router(self, namespace: str) -> Router:
        return self._exchanges.router(namespace)
