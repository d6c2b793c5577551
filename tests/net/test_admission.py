from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from braidmq.net.admission import Admission

NAMESPACES = st.sampled_from(["/", "shop", "plant"])


class Admitting(RuleBasedStateMachine):
    """Against a list of who is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission()
        self.inside: dict[object, str] = {}

    connections = Bundle("connections")

    @rule(target=connections, namespace=NAMESPACES)
    def enter(self, namespace: str) -> object:
        connection = object()
        self.admission.enter(connection, namespace)
        self.inside[connection] = namespace
        return connection

    @rule(connection=connections)
    def leave(self, connection: object) -> None:
        """As often as it likes, also if it was not let in."""
        self.admission.leave(connection)
        self.inside.pop(connection, None)

    @rule(connection=consumes(connections))
    def forget(self, connection: object) -> None:
        self.leave(connection)

    @invariant()
    def counts_are_those_inside(self) -> None:
        counts = Counter(self.inside.values())
        for namespace in ("/", "shop", "plant"):
            assert self.admission.count(namespace) == counts[namespace]


TestAdmitting = Admitting.TestCase
