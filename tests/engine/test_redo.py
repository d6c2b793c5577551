"""Doing is redoing: an engine that is made from the entries of another is in the same state.

The machines of the other model tests run, and at random points a second engine is opened from a
copy of the disk: from the whole journal, or from a snapshot and what came after it. Everything
durable is compared; ``braidmq.testing.durable_state`` sees to it that nothing is forgotten.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule
from test_engine_model import EngineMachine, batches, picks
from test_transactions_model import TransactionMachine

from braidmq.engine.engine import Engine
from braidmq.testing.durable_state import differences, state_of_engine
from braidmq.testing.faulty_disk import FaultyDisk, KeepAll


def check_redone(engine: Engine, disk: FaultyDisk, now_ms: int) -> None:
    engine.store.commit()
    copy = Engine.open(disk.crash(KeepAll()), now_ms, engine.store.settings)
    try:
        redone, done = state_of_engine(copy, now_ms), state_of_engine(engine, now_ms)
        assert not (found := differences(redone, done)), "\n".join(found)
    finally:
        copy.close()


class RedoneEngine(EngineMachine):
    """Without transient records: they are in no entry."""

    @rule(pick=picks, wanted=batches)
    def publish(self, pick: int, wanted: list[dict[str, Any]]) -> None:
        self.world.publish([self.topic_at(pick).name], wanted, durable=True)

    @rule(wanted=batches)
    def fan_out(self, wanted: list[dict[str, Any]]) -> None:
        self.world.publish(list(self.world.model.topics), wanted, durable=True)

    @rule()
    def redo(self) -> None:
        check_redone(self.world.engine, self.world.disk, self.world.now_ms)

    @rule()
    def redo_from_a_snapshot(self) -> None:
        self.world.engine.store.checkpoint()
        self.redo()

    def teardown(self) -> None:
        self.redo()
        super().teardown()


class RedoneTransactions(TransactionMachine):
    @precondition(lambda self: hasattr(self, "engine"))
    @rule()
    def redo(self) -> None:
        self.synced = len(self.events)
        check_redone(self.engine, self.disk, self.now_ms)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.redo()
        super().teardown()


TestRedoneEngine = RedoneEngine.TestCase
TestRedoneTransactions = RedoneTransactions.TestCase
TestRedoneEngine.settings = TestRedoneTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
