"""The router under changes in any order, against a model that keeps nothing between questions."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from routing_oracles import ModelExchange, ModelRouter

from braidmq.engine.routing.bindings import Destination
from braidmq.engine.routing.cache import CACHE_BYTES_MAX
from braidmq.engine.routing.effects import BindingRemoved, ExchangeDeleted
from braidmq.engine.routing.router import PREDECLARED, Router

OWN = ["a", "b", "c", "d"]
TOPICS = ["q1", "q2", "q3"]
KEYS = [b"", b"1", b"2", b"k", b"k.1", b"k.1.x"]
PATTERNS = [*KEYS, b"#", b"*", b"k.#", b"#.x", b"*.1"]
HEADERS = [{}, {"a": 1}, {"a": 2, "b": "x"}, {"x-a": 1}]
ARGUMENTS = [{}, {}, {"a": 1}, {"a": None}, {"x-match": "any", "a": 1, "b": "x"}]
ARGUMENTS += [{"x-match": "any-with-x", "x-a": 1}]

ASKED_AGAIN = 4  # questions repeated after every change: what an answer kept too long is seen by

kinds = st.sampled_from(["direct", "fanout", "topic", "headers", "consistent-hash"])
alternates = st.sampled_from([None, None, "", *OWN])


class Routing(RuleBasedStateMachine):
    @initialize(
        cache_bytes_max=st.sampled_from([2500, CACHE_BYTES_MAX]),  # the first: a dozen answers
        declared=st.lists(st.tuples(kinds, alternates, st.booleans()), max_size=len(OWN)),
    )
    def start(self, cache_bytes_max, declared):
        self.router = Router(cache_bytes_max=cache_bytes_max)
        self.questions: list[tuple[str, bytes]] = []
        self.model = ModelRouter({info.name: ModelExchange(info.kind) for info in PREDECLARED})
        for name, (kind, alternate, auto_delete) in zip(OWN, declared, strict=False):
            self.declare(name, kind, auto_delete, False, alternate, None)

    def some_exchange(self, data) -> str:
        return data.draw(st.sampled_from(sorted(self.model.exchanges)))

    def some_end(self, data) -> Destination:
        if data.draw(st.booleans()):
            return Destination("exchange", self.some_exchange(data))
        return Destination("topic", data.draw(st.sampled_from(TOPICS)))

    @rule(
        name=st.sampled_from(OWN),
        kind=kinds,
        auto_delete=st.booleans(),
        internal=st.booleans(),
        alternate=alternates,
        hash_header=st.sampled_from([None, "a"]),
    )
    def declare(self, name, kind, auto_delete, internal, alternate, hash_header):
        if name in self.model.exchanges:
            return
        self.router.declare(
            name,
            kind,
            auto_delete=auto_delete,
            internal=internal,
            alternate_exchange=alternate,
            arguments={} if hash_header is None else {"hash-header": hash_header},
        )
        self.model.exchanges[name] = ModelExchange(
            kind, auto_delete, internal, alternate, hash_header
        )

    @rule(data=st.data(), key=st.sampled_from(PATTERNS), arguments=st.sampled_from(ARGUMENTS))
    def bind(self, data, key, arguments):
        source, destination = self.some_exchange(data), self.some_end(data)
        if self.model.exchanges[source].kind == "consistent-hash" and key not in (b"1", b"2"):
            key = b"1"
        row = (source, *destination, key, arguments)
        effects = self.router.bind(source, destination, key, arguments)
        assert bool(effects) is (row not in self.model.bindings)
        if effects:
            self.model.bindings.append(row)

    def compare_losses(self, effects, before, died):
        removed = [
            (b.source, *b.destination, b.key, dict(b.arguments))
            for b in (e.binding for e in effects if isinstance(e, BindingRemoved))
        ]
        lost = [row for row in before if row not in self.model.bindings]
        assert sorted(map(repr, removed)) == sorted(map(repr, lost))
        gone = [e.name for e in effects if isinstance(e, ExchangeDeleted)]
        assert sorted(gone) == sorted(died)
        assert len(removed) + len(gone) == len(effects)

    @rule(data=st.data())
    def unbind(self, data):
        if not self.model.bindings:
            return
        row = data.draw(st.sampled_from(self.model.bindings))
        before = self.model.bindings
        effects = self.router.unbind(row[0], Destination(row[1], row[2]), row[3], row[4])
        self.compare_losses(effects, before, self.model.remove_bindings([row]))

    @rule(data=st.data(), key=st.sampled_from(PATTERNS), arguments=st.sampled_from(ARGUMENTS))
    def unbind_what_is_not_bound(self, data, key, arguments):
        source, destination = self.some_exchange(data), self.some_end(data)
        if (source, *destination, key, arguments) not in self.model.bindings:
            assert self.router.unbind(source, destination, key, arguments) == []

    @rule(name=st.sampled_from(OWN))
    def delete(self, name):
        if name not in self.model.exchanges:
            return
        before = self.model.bindings
        effects = self.router.delete(name)
        died = self.model.reap(self.model.remove_exchange(name))
        self.compare_losses(effects, before, died | {name})

    @rule(name=st.sampled_from(TOPICS))
    def forget_topic(self, name):
        before = self.model.bindings
        effects = self.router.forget_topic(name)
        lost = [row for row in before if row[1:3] == ("topic", name)]
        self.compare_losses(effects, before, self.model.remove_bindings(lost))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def ask(self, data, key):
        name = data.draw(st.sampled_from(["", *sorted(self.model.exchanges)]))
        self.questions = [*self.questions, (name, key)][-ASKED_AGAIN:]

    @rule()
    def ask_everything(self):
        for name in self.model.exchanges:
            for key in KEYS:
                self.compare(name, key)

    def compare(self, name, key):
        for headers in HEADERS:
            expected = self.model.resolve(name, key, headers)
            assert self.router.resolve(name, key, lambda headers=headers: headers) == expected

    @invariant()
    def answers_agree(self):
        for name, key in self.questions:
            if not name or name in self.model.exchanges:
                self.compare(name, key)

    @invariant()
    def listings_agree(self):
        listed = [
            (b.source, *b.destination, b.key, dict(b.arguments)) for b in self.router.bindings()
        ]
        assert sorted(map(repr, listed)) == sorted(map(repr, self.model.bindings))
        assert {info.name for info in self.router.exchanges()} == {"", *self.model.exchanges}


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
