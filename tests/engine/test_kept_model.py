"""The engine's model with topics that let go of their messages: by retention, by compaction, and
once they were kept long enough. What is rare among all else is frequent here."""

from typing import Any

from engine_model_world import KEPT_PROFILES, MODES, PLAIN, crashes, picks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_engine_model import EngineMachine

from braidmq.engine.envelope import AMQP, MQTT, NATIVE
from braidmq.engine.topics import Mode

changes = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from([b"a", b"b", None]),
            "header": st.sampled_from(["x", "y", None]),
            "envelope": st.sampled_from([NATIVE, AMQP, MQTT]),
            "empty": st.sampled_from([False, False, True]),
        }
    ),
    min_size=1,
    max_size=4,
)


class KeptMachine(EngineMachine):
    # These take away what took long to build up, and others do them.
    recreate = None
    redeem = None

    @initialize(
        profiles=st.lists(st.sampled_from(KEPT_PROFILES), min_size=2, max_size=3),
        modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
    )
    def begin(self, profiles: list[dict[str, Any]], modes: list[Mode]) -> None:
        super().begin(profiles, modes)

    @rule(pick=picks, first=changes, second=changes, checkpoint=st.booleans())
    def change(self, pick: int, first: list[Any], second: list[Any], checkpoint: bool) -> None:
        """Keys change while consumers have what they were before."""
        name = self.topic_at(pick).name
        self.world.publish([name], [PLAIN | each for each in first], durable=True)
        self.world.dispatch()
        self.world.publish([name], [PLAIN | each for each in second], durable=True)
        self.compact_or_enforce(pick, checkpoint)

    @rule(pick=picks, checkpoint=st.booleans())
    def compact_or_enforce(self, pick: int, checkpoint: bool) -> None:
        topic = self.topic_at(pick)
        if topic.policy.compaction.enabled:
            self.world.compact(topic, checkpoint=checkpoint)
        else:
            self.world.enforce(topic)

    @rule(pick=picks, by_ms=st.sampled_from([0, 300, 1200, 4000]), choice=crashes)
    def settle_and_replay(self, pick: int, by_ms: int, choice: Any) -> None:
        """What was acknowledged is there for as long as it is to be kept, and may be longer."""
        self.world.dispatch()
        self.world.ack_all()
        self.world.check()
        self.world.advance(by_ms)
        if by_ms == 300:
            self.world.crash(choice, 10)
            self.world.attach_all()
        self.rewind(pick, "earliest", 0)


KeptMachine.TestCase.settings = settings(EngineMachine.TestCase.settings, max_examples=100)
TestKept = KeptMachine.TestCase
