"""The engine's model with topics that are resized again and again: keys go on in other partitions,
and what is held back for them waits by way of all resizes there were."""

from typing import Any

import pytest
from engine_model_world import PLAIN, RETRY, crashes, picks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_engine_model import EngineMachine

from braidmq.engine.topics import Mode

KEYS = [b"key-%d" % number for number in range(12)]
RESIZED: list[dict[str, Any]] = [
    {"partitions": 2, "ordering": "partition", **RETRY},
    {"partitions": 3, "ordering": "partition", "retention": {"until_acked": True}, **RETRY},
    {"partitions": 2, "ordering": "none", **RETRY},
]
keyed = st.lists(
    st.sampled_from(KEYS).map(lambda key: PLAIN | {"key": key, "padding": 0}),
    min_size=0,
    max_size=6,
)


class ResizedMachine(EngineMachine):
    # What is left is what barriers rise and are lifted by: the rest is in the other machines.
    alter = set_template = delete_template = None
    recreate = resubscribe = unsubscribe = subscribe = None
    enforce = compact = purge = redeem = cancel_delayed = None
    publish = publish_many = fan_out = advance = None
    attach = detach = pause_or_resume = change_credit = pull = None
    extend = answer_for_somebody_else = commit = crash = dispatch_again = None

    @initialize(
        profile=st.sampled_from(RESIZED),
        modes=st.lists(st.sampled_from([Mode.SHARED, Mode.KEY_ORDERED]), min_size=1, max_size=2),
    )
    def begin(self, profile: dict[str, Any], modes: list[Mode]) -> None:
        self.world.create("t", profile, modes)
        self.world.attach_all()

    @rule(counts=st.lists(st.tuples(st.integers(1, 6), keyed), min_size=1, max_size=4))
    def resize_and_publish(self, counts: list[tuple[int, list[dict[str, Any]]]]) -> None:
        """Some of the resizes pass without a message."""
        for count, wanted in counts:
            self.resize(0, count)
            if wanted:
                self.world.publish(["t"], wanted, durable=True)

    @rule(pick=picks, choice=crashes, again=st.booleans())
    def deliver_and_crash(self, pick: int, choice: Any, again: bool) -> None:
        self.world.dispatch()
        self.world.crash(choice, 10)
        self.world.attach_all()
        if again:
            self.rewind(pick, "earliest", 0)


ResizedMachine.TestCase.settings = settings(
    EngineMachine.TestCase.settings, max_examples=200, stateful_step_count=20
)
# To make a failure small takes longer than to find it.
TestResized = pytest.mark.timeout(600)(ResizedMachine.TestCase)
