"""HTTP traffic: batches, groups, transactions, idempotent producers, a compacted topic."""

import json
import time
from typing import Any

import httpx

from braidmq.testing.crash.clients import ANSWER_S_MAX, Client, Gone, NoAnswer, World
from braidmq.testing.crash.history import (
    NOWHERE,
    LatestRead,
    Placed,
    Promise,
    Publisher,
    Reader,
    Strand,
    parse_body,
    place_of,
)

GUEST = ("guest", "guest")
BATCH = 100
KEYS = 8
SIDE_PAUSE_S = 0.03
SESSION_MS = 5000
"""A transaction that nobody hears of for so long is aborted."""

BATCH_TOPIC, GROUP = "batch", "batch-group"
TX_LOGS = ("http-tx-a", "http-tx-b")
MOVE_IN, MOVE_OUT, MOVE_SUBSCRIPTION = "http-move-in", "http-move-out", "mover"
ONCE_LOG = "http-once"
LATEST_TOPIC = "http-latest"
LATEST_KEYS = 10

LOGS: dict[str, tuple[str, ...]] = {
    "http-batch": (BATCH_TOPIC,),
    "http-tx": TX_LOGS,
    "http-move": (MOVE_OUT,),
    "http-once": (ONCE_LOG,),
}
PARTITIONS = {BATCH_TOPIC: 3, MOVE_IN: 2, MOVE_OUT: 2}
PATIENT = {"attempts": 1000}
"""A kill of the node is a failed delivery: by default the third makes a message a dead letter."""
COMPACTED = {"enabled": True, "lag_ms": 100, "interval_ms": 400}


def topics() -> dict[str, dict[str, Any]]:
    """Names to settings."""
    names = [name for logs in LOGS.values() for name in logs]
    found: dict[str, dict[str, Any]] = {
        name: {"partitions": PARTITIONS.get(name, 1), "retry": PATIENT}
        for name in [*names, MOVE_IN]
    }
    found[LATEST_TOPIC] = {"partitions": 1, "compaction": COMPACTED}
    return found


def subscriptions() -> list[tuple[str, str]]:
    return [(MOVE_IN, MOVE_SUBSCRIPTION)]


def clients(world: World) -> tuple[list[Strand], list[Client]]:
    working: list[Client] = []

    batch = Strand("http-batch")
    batch.new_publishers(KEYS)
    batch.new_reader("log", Promise(once=True, order="place"))
    group = batch.new_reader("group", Promise(order="connection"))
    working.append(BatchPublisher(world, batch, group))
    working += [GroupMember(world, batch, group, index) for index in range(2)]

    tx = Strand("http-tx")
    tx.new_publishers(len(TX_LOGS))
    tx.new_reader("log", Promise(once=True, order="place", whole_units=True))
    working.append(TransactionPublisher(world, tx))

    move = Strand("http-move")
    move.new_publishers(1)
    move.new_reader("log", Promise(once=True))
    moved = Reader()
    working += [MovePublisher(world, move, moved), Mover(world, move, moved)]

    once = Strand("http-once")
    once.new_publishers(1)
    once.new_reader("log", Promise(once=True, order="place"))
    working.append(OncePublisher(world, once))

    latest = Strand("http-latest")
    latest.new_publishers(LATEST_KEYS)
    working.append(LatestPublisher(world, latest))
    return [batch, tx, move, once, latest], working


class Refusal(Exception):
    def __init__(self, response: httpx.Response) -> None:
        super().__init__(
            f"{response.request.url.path}: {response.status_code} {response.text[:300]}"
        )
        self.status = response.status_code
        try:
            self.code = str(response.json().get("code", ""))
        except ValueError:
            self.code = ""


class HttpClient(Client):
    gone = (httpx.TransportError, *Client.gone)
    _client: httpx.Client | None = None

    def connect(self) -> None:
        self._client = httpx.Client(
            base_url=self.world.http_url, auth=GUEST, timeout=ANSWER_S_MAX, trust_env=False
        )

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def call(self, verb: str, path: str, body: Any = None, **headers: str) -> Any:
        assert self._client is not None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body)
        try:
            response = self._client.request(verb, path, content=data, headers=named)
        except httpx.TimeoutException as error:
            raise NoAnswer(path) from error
        if response.is_success:
            return response.json() if response.content else None
        refusal = Refusal(response)
        if refusal.status == 503:  # it stops
            raise Gone from refusal
        raise refusal

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, {} if body is None else body, **headers)


class BatchPublisher(HttpClient):
    publishes = True

    def __init__(self, world: World, strand: Strand, reader: Reader) -> None:
        super().__init__(world, strand, "publisher")
        self._reader = reader
        self._unit = 0

    def work(self) -> None:
        self.connect()
        while self.world.publishing.is_set():
            self.wait_for_turn(self._reader)
            self._unit += 1
            self._publish()
        self.is_finished = True

    def _publish(self) -> None:
        messages, sent = [], []
        for _ in range(BATCH):
            key = self.random.randrange(KEYS)
            number = self.strand.publishers[key].send(unit=self._unit)
            body = self.strand.body(key, number).decode()
            messages.append({"value": body, "key": f"key-{key}"})
            sent.append((key, number))
        answer = self.post(f"/v1/topics/{BATCH_TOPIC}/messages/batch", {"messages": messages})
        for key, number in sent:
            self.strand.publishers[key].confirm(number)
        for run in answer["partitions"]:
            place = place_of(run["partition"], run["first_offset"])
            self.strand.placed.append(Placed(self._unit, place, run["count"]))


class GroupMember(HttpClient):
    """Joins, polls, commits; after each life of the node as somebody new."""

    def __init__(self, world: World, strand: Strand, reader: Reader, index: int) -> None:
        super().__init__(world, strand, f"member {index}")
        self._reader = reader
        self._index = index

    def work(self) -> None:
        self.connect()
        path = f"/v1/groups/{GROUP}/members"
        joining = {
            "topics": [BATCH_TOPIC],
            "member_id": f"member-{self._index}",
            "session_timeout_ms": 4000,
            "rebalance_timeout_ms": 2000,
        }
        member = self.post(path, joining)
        path = f"{path}/{member['member_id']}"
        generation = member["generation"]
        while not self.world.ended.is_set():
            try:
                polled = self.post(
                    f"{path}/poll", {"generation": generation, "limit": 500, "wait_ms": 200}
                )
                if polled["member"]["generation"] != generation:
                    generation = polled["member"]["generation"]
                    self.connection += 1
                if polled["messages"]:
                    self._handle(path, generation, polled["messages"])
                if revoking := polled["member"]["revoking"]:
                    revoked = [
                        {"topic": topic, "partition": partition}
                        for topic, partitions in revoking.items()
                        for partition in partitions
                    ]
                    self.post(f"{path}/sync", {"generation": generation, "revoked": revoked})
            except Refusal as refusal:
                if refusal.status in (404, 409):  # it was away for too long: it joins again
                    return
                raise

    def _handle(self, path: str, generation: int, messages: list[dict[str, Any]]) -> None:
        ends: dict[int, int] = {}
        found = []
        # Unique among both members' connections.
        connection = self.connection * 2 + self._index
        for each in messages:
            place = place_of(each["partition"], each["offset"])
            body = each["value"].encode()
            found.append(self._reader.arrived(self.strand.name, body, connection, place))
            ends[each["partition"]] = max(ends.get(each["partition"], 0), each["offset"] + 1)
        offsets = [
            {"topic": BATCH_TOPIC, "partition": partition, "offset": end}
            for partition, end in ends.items()
        ]
        self.post(f"{path}/commit", {"generation": generation, "offsets": offsets})
        self.strand.other_operations += 1
        for each_found in found:
            if each_found is not None:
                self._reader.settle(*each_found)


class TransactionPublisher(HttpClient):
    """Named transactions over two logs. One whose end is unknown is asked for again, as the docs
    say one may, until its end is known."""

    publishes = True

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "publisher")
        self._number = 0
        self._ending: tuple[str, list[tuple[Publisher, int]]] | None = None

    def work(self) -> None:
        self.connect()
        while True:
            if self._ending is not None:
                self._commit(*self._ending)
                self._ending = None
            if not self.world.publishing.is_set():
                self.is_finished = True
                return
            self.wait_for_turn()
            self._transact()
            time.sleep(SIDE_PAUSE_S)

    def _transact(self) -> None:
        self._number += 1
        name = f"lab-{self._number}"
        self.post("/v1/transactions", {"name": name, "session_ms": SESSION_MS})
        unit: list[tuple[Publisher, int]] = []
        for index, log in enumerate(TX_LOGS):
            messages = []
            publisher = self.strand.publishers[index]
            for _ in range(self.random.randint(1, 20)):
                number = publisher.send(unit=self._number)
                publisher.abort(number)  # unless its commit is asked for
                unit.append((publisher, number))
                messages.append({"value": self.strand.body(index, number).decode()})
            path = f"/v1/topics/{log}/messages/batch"
            self.post(path, {"messages": messages}, Braid_Transaction=name)
        if self.random.random() < 0.2:
            self.post(f"/v1/transactions/{name}/abort")
            return
        self._ending = (name, unit)
        for publisher, number in unit:
            publisher.fate[number] = 0

    def _commit(self, name: str, unit: list[tuple[Publisher, int]]) -> None:
        try:
            self.post(f"/v1/transactions/{name}/commit")
        except Refusal as refusal:
            if refusal.code not in ("transaction-aborted", "unknown-transaction"):
                raise
            # It was silent for too long, or a kill forgot what was never confirmed.
            for publisher, number in unit:
                publisher.abort(number)
            return
        for publisher, number in unit:
            publisher.confirm(number)


class MovePublisher(HttpClient):
    publishes = True

    def __init__(self, world: World, strand: Strand, moved: Reader) -> None:
        super().__init__(world, strand, "publisher")
        self._moved = moved

    def work(self) -> None:
        self.connect()
        publisher = self.strand.publishers[0]
        while self.world.publishing.is_set():
            self.wait_for_turn(self._moved)
            numbers = [publisher.send() for _ in range(BATCH // 2)]
            messages = [{"value": self.strand.body(0, each).decode()} for each in numbers]
            self.post(f"/v1/topics/{MOVE_IN}/messages/batch", {"messages": messages})
            for number in numbers:
                publisher.confirm(number)
            time.sleep(SIDE_PAUSE_S)
        self.is_finished = True


class Mover(HttpClient):
    """Consume, transform, produce: receives, publishes and acknowledges in one transaction."""

    def __init__(self, world: World, strand: Strand, moved: Reader) -> None:
        super().__init__(world, strand, "mover")
        self._moved = moved

    def work(self) -> None:
        self.connect()
        while not self.world.ended.is_set():
            try:
                self._move()
            except Refusal as refusal:
                # Too slow for the visibility of a message, or for the transaction: it comes again.
                if refusal.code not in (
                    "not-in-flight",
                    "stale-receipt",
                    "transaction-aborted",
                    "unknown-transaction",
                ):
                    raise

    def _move(self) -> None:
        path = f"/v1/topics/{MOVE_IN}/subscriptions/{MOVE_SUBSCRIPTION}/receive"
        wanted = {"limit": BATCH, "wait_ms": 200, "visibility_ms": SESSION_MS}
        messages = self.post(path, wanted)["messages"]
        if not messages:
            return
        name = self.post("/v1/transactions", {"session_ms": SESSION_MS})["name"]
        for each in messages:
            self._moved.arrived(self.strand.name, each["value"].encode())
        made = [{"value": each["value"]} for each in messages]
        publish = f"/v1/topics/{MOVE_OUT}/messages/batch"
        self.post(publish, {"messages": made}, Braid_Transaction=name)
        receipts = {"receipts": [each["receipt"] for each in messages]}
        self.post("/v1/receipts/ack", receipts, Braid_Transaction=name)
        self.post(f"/v1/transactions/{name}/commit")
        self.strand.other_operations += 1


class OncePublisher(HttpClient):
    """An idempotent producer: sends a batch again, with its number, until it is answered."""

    publishes = True

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "publisher")
        self._identity: dict[str, str] = {}
        self._unanswered: list[int] = []

    def work(self) -> None:
        self.connect()
        if not self._identity:
            made = self.post("/v1/producers")
            self._identity = {
                "Braid_Producer_Id": str(made["producer_id"]),
                "Braid_Producer_Epoch": str(made["epoch"]),
            }
        publisher = self.strand.publishers[0]
        while True:
            if not self._unanswered:
                if not self.world.publishing.is_set():
                    self.is_finished = True
                    return
                self.wait_for_turn()
                self._unanswered = [publisher.send() for _ in range(BATCH)]
            messages = [{"value": self.strand.body(0, each).decode()} for each in self._unanswered]
            path = f"/v1/topics/{ONCE_LOG}/messages/batch"
            sequence = str(self._unanswered[0])
            self.post(path, {"messages": messages}, Braid_Sequence=sequence, **self._identity)
            for number in self._unanswered:
                publisher.confirm(number)
            self._unanswered = []
            time.sleep(SIDE_PAUSE_S)


class LatestPublisher(HttpClient):
    """Values of a few keys in a compacted topic: what is last there is what was last confirmed."""

    publishes = True

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "publisher")

    def work(self) -> None:
        self.connect()
        self._read()
        while self.world.publishing.is_set():
            self.wait_for_turn()
            for _ in range(10):
                self._publish()
            self._read()
            time.sleep(SIDE_PAUSE_S)
        self._read()
        self.is_finished = True

    def _publish(self) -> None:
        messages, sent = [], []
        for key, publisher in enumerate(self.strand.publishers):
            number = publisher.send()
            body = self.strand.body(key, number).decode()
            messages.append({"value": body, "key": str(key)})
            sent.append((publisher, number))
        self.post(f"/v1/topics/{LATEST_TOPIC}/messages/batch", {"messages": messages})
        for publisher, number in sent:
            publisher.confirm(number)

    def _read(self) -> None:
        asked_ns = time.monotonic_ns()
        found: dict[int, int] = {}
        at, end = 0, 1
        while at < end:
            path = f"/v1/topics/{LATEST_TOPIC}/partitions/0/messages?limit=1000&start={at}"
            page = self.call("GET", path)
            for each in page["messages"]:
                said = parse_body(self.strand.name, each["value"].encode())
                if said is None:
                    self.strand.problem(f"{self.name}: read {each['value'][:80]!r}")
                else:
                    found[said[0]] = said[1]
            if page["next_offset"] <= at and not page["messages"]:
                break
            at, end = page["next_offset"], page["end_offset"]
        answered_ns = time.monotonic_ns()
        for key in range(LATEST_KEYS):
            read = LatestRead(key, found.get(key, NOWHERE), asked_ns, answered_ns)
            self.strand.latest.append(read)
