"""``broker.admin`` of ``connect_sync``: ``admin.py`` without ``await``, written by
scripts/client_types.py."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, Unpack

from braidmq.client.admin import Admin, Json, Mode
from braidmq.client.answers import (
    BindingInfo,
    DeadLetterInfo,
    DelayedMessages,
    DelayStats,
    ExchangeInfo,
    GroupInfo,
    GroupSummary,
    Letters,
    MemberInfo,
    Overview,
    Polled,
    ReadMessages,
    Retried,
    ReturnedLetters,
    ScheduleInfo,
    SessionInfo,
    SubscriptionInfo,
    TemplateInfo,
    TopicInfo,
    TopicPolicySettings,
    TopicSummary,
    TransactionInfo,
)
from braidmq.client.threads import LoopThread

_T = TypeVar("_T")


class SyncAdmin:
    """As ``Admin``: every method waits for its answer."""

    def __init__(self, thread: LoopThread, admin: Admin) -> None:
        self._thread = thread
        self._admin = admin

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.wait_for(work)

    def list_topics(self, *, prefix: str = "") -> list[TopicSummary]:
        return self._wait(self._admin.list_topics(prefix=prefix))

    def describe_topic(self, topic: str) -> TopicInfo:
        return self._wait(self._admin.describe_topic(topic))

    def create_topic(self, topic: str, **settings: Unpack[TopicPolicySettings]) -> TopicInfo:
        """``create_topic("orders", partitions=6)``; the same topic twice is once."""
        return self._wait(self._admin.create_topic(topic, **settings))

    def alter_topic(self, topic: str, **settings: Unpack[TopicPolicySettings]) -> TopicInfo:
        """``alter_topic("orders", overflow="drop-head")``; what is not named stays as it is."""
        return self._wait(self._admin.alter_topic(topic, **settings))

    def delete_topic(self, topic: str) -> None:
        return self._wait(self._admin.delete_topic(topic))

    def purge_topic(self, topic: str) -> int:
        """How many messages went."""
        return self._wait(self._admin.purge_topic(topic))

    def list_transactions(self) -> list[TransactionInfo]:
        """Those that are open, the oldest first, and what each keeps readers from."""
        return self._wait(self._admin.list_transactions())

    def transaction(self, name: str) -> TransactionInfo:
        """An open one, or for an hour how it ended."""
        return self._wait(self._admin.transaction(name))

    def commit_transaction(self, name: str) -> TransactionInfo:
        return self._wait(self._admin.commit_transaction(name))

    def abort_transaction(self, name: str) -> TransactionInfo:
        return self._wait(self._admin.abort_transaction(name))

    def last_committed(self, application: str) -> tuple[int, int]:
        """Epoch and sequence of what an application committed last. Raises NotFound."""
        return self._wait(self._admin.last_committed(application))

    def read_messages(
        self, topic: str, partition: int, *, start: str = "earliest", limit: int = 100
    ) -> ReadMessages:
        return self._wait(self._admin.read_messages(topic, partition, start=start, limit=limit))

    def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        return self._wait(self._admin.list_subscriptions(topic))

    def describe_subscription(self, topic: str, subscription: str) -> SubscriptionInfo:
        return self._wait(self._admin.describe_subscription(topic, subscription))

    def create_subscription(
        self, topic: str, subscription: str, *, mode: Mode | None = None, start: str = "earliest"
    ) -> SubscriptionInfo:
        """``start`` is ``earliest``, ``latest``, an offset, or ``@`` and milliseconds."""
        return self._wait(
            self._admin.create_subscription(topic, subscription, mode=mode, start=start)
        )

    def delete_subscription(self, topic: str, subscription: str) -> None:
        return self._wait(self._admin.delete_subscription(topic, subscription))

    def seek_subscription(
        self, topic: str, subscription: str, to: str, *, partition: int | None = None
    ) -> SubscriptionInfo:
        """Begin again from ``earliest``, ``latest``, an offset, or ``@`` and milliseconds; in one
        partition or in all."""
        return self._wait(
            self._admin.seek_subscription(topic, subscription, to, partition=partition)
        )

    def list_groups(self) -> list[GroupSummary]:
        return self._wait(self._admin.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        return self._wait(self._admin.describe_group(group))

    def delete_group(self, group: str) -> None:
        return self._wait(self._admin.delete_group(group))

    def seek_group(self, group: str, topic: str, to: str, *, partition: int | None = None) -> None:
        return self._wait(self._admin.seek_group(group, topic, to, partition=partition))

    def join_group(self, group: str, topics: Sequence[str], **options: Any) -> MemberInfo:
        """What the new member is told: ``member_id``, ``generation``, ``assigned``, …"""
        return self._wait(self._admin.join_group(group, topics, **options))

    def heartbeat(self, group: str, member: str, generation: int) -> MemberInfo:
        return self._wait(self._admin.heartbeat(group, member, generation))

    def sync(
        self, group: str, member: str, generation: int, revoked: Sequence[Json] = ()
    ) -> MemberInfo:
        return self._wait(self._admin.sync(group, member, generation, revoked))

    def leave_group(self, group: str, member: str, generation: int) -> None:
        return self._wait(self._admin.leave_group(group, member, generation))

    def poll(
        self, group: str, member: str, generation: int, *, limit: int = 100, wait_ms: int = 0
    ) -> Polled:
        return self._wait(self._admin.poll(group, member, generation, limit=limit, wait_ms=wait_ms))

    def commit(self, group: str, member: str, generation: int, offsets: Sequence[Json]) -> None:
        """``offsets=[{"topic": "orders", "partition": 0, "offset": 17}]``"""
        return self._wait(self._admin.commit(group, member, generation, offsets))

    def list_dead_letters(
        self, topic: str, *, start: int = 0, limit: int = 100, queue: str = ""
    ) -> Letters:
        return self._wait(
            self._admin.list_dead_letters(topic, start=start, limit=limit, queue=queue)
        )

    def list_all_dead_letters(
        self, *, limit: int = 100, **wanted: str | int
    ) -> list[DeadLetterInfo]:
        """Of all namespaces that the user may enter, or those that have what is ``wanted``:
        ``namespace``, ``topic``, ``reason``, ``subscription``, ``queue``, ``since_ms``,
        ``until_ms``; in as many calls as ``limit`` of them take."""
        return self._wait(self._admin.list_all_dead_letters(limit=limit, **wanted))

    def return_dead_letters(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        to: str = "subscription",
        **wanted: str | int,
    ) -> ReturnedLetters:
        """Return those that have what is ``wanted`` (as above, and ``offset``) to where they came
        from, or with ``everything`` all: in as many calls as it takes. ``count`` went back, or
        would in a ``dry_run``; ``stayed_count`` can't, and ``stayed`` says why, of the first."""
        return self._wait(
            self._admin.return_dead_letters(everything=everything, dry_run=dry_run, to=to, **wanted)
        )

    def describe_dead_letter(self, topic: str, offset: int, *, queue: str = "") -> DeadLetterInfo:
        return self._wait(self._admin.describe_dead_letter(topic, offset, queue=queue))

    def retry_dead_letter(self, topic: str, offset: int, *, queue: str = "") -> None:
        return self._wait(self._admin.retry_dead_letter(topic, offset, queue=queue))

    def retry_dead_letters(self, topic: str) -> Retried:
        return self._wait(self._admin.retry_dead_letters(topic))

    def delete_dead_letter(self, topic: str, offset: int, *, queue: str = "") -> None:
        return self._wait(self._admin.delete_dead_letter(topic, offset, queue=queue))

    def purge_dead_letters(self, topic: str) -> int:
        return self._wait(self._admin.purge_dead_letters(topic))

    def list_delayed(
        self, topic: str, *, state: str = "pending", limit: int = 100
    ) -> DelayedMessages:
        """``messages`` that wait; or with ``state`` the last that were ``"delivered"``,
        ``"cancelled"`` or ``"expired"`` since the node started, as ``ended``."""
        return self._wait(self._admin.list_delayed(topic, state=state, limit=limit))

    def delay_stats(self) -> DelayStats:
        return self._wait(self._admin.delay_stats())

    def cancel_delayed(self, topic: str, partition: int, offset: int) -> None:
        return self._wait(self._admin.cancel_delayed(topic, partition, offset))

    def list_schedules(self, topic: str | None = None) -> list[ScheduleInfo]:
        return self._wait(self._admin.list_schedules(topic))

    def put_schedule(self, topic: str, name: str, value: str = "", **options: Any) -> ScheduleInfo:
        """Publish ``value`` again and again: by ``cron="0 9 * * mon-fri"`` in a ``zone``, or
        ``every_ms``; with ``key``, ``headers``, ``partition``, ``paused``. One of that name is
        replaced."""
        return self._wait(self._admin.put_schedule(topic, name, value, **options))

    def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        return self._wait(self._admin.describe_schedule(topic, name))

    def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        return self._wait(self._admin.pause_schedule(topic, name))

    def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        return self._wait(self._admin.resume_schedule(topic, name))

    def delete_schedule(self, topic: str, name: str) -> None:
        return self._wait(self._admin.delete_schedule(topic, name))

    def list_exchanges(self) -> list[ExchangeInfo]:
        return self._wait(self._admin.list_exchanges())

    def create_exchange(self, exchange: str, kind: str = "direct", **options: Any) -> ExchangeInfo:
        return self._wait(self._admin.create_exchange(exchange, kind, **options))

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        return self._wait(self._admin.delete_exchange(exchange, if_unused=if_unused))

    def list_bindings(self, source: str | None = None) -> list[BindingInfo]:
        return self._wait(self._admin.list_bindings(source))

    def bind(
        self, source: str, destination: str, routing_key: str = "", **options: Any
    ) -> BindingInfo:
        return self._wait(self._admin.bind(source, destination, routing_key, **options))

    def unbind(self, source: str, destination: str, routing_key: str = "") -> None:
        return self._wait(self._admin.unbind(source, destination, routing_key))

    def list_templates(self) -> list[TemplateInfo]:
        return self._wait(self._admin.list_templates())

    def put_template(
        self, name: str, pattern: str, settings: TopicPolicySettings, *, priority: int = 0
    ) -> TemplateInfo:
        """Settings of all topics whose name is like ``pattern`` and that say nothing else."""
        return self._wait(self._admin.put_template(name, pattern, settings, priority=priority))

    def delete_template(self, name: str) -> None:
        return self._wait(self._admin.delete_template(name))

    def overview(self) -> Overview:
        return self._wait(self._admin.overview())

    def list_connections(self) -> list[SessionInfo]:
        return self._wait(self._admin.list_connections())

    def close_connection(self, connection: str) -> None:
        return self._wait(self._admin.close_connection(connection))
