"""What waits for a client that is away, and what is sent again when it comes back."""

from typing import Any

from tests.differential.mqtt.client import Client, Observation, Stage
from tests.differential.mqtt.scenarios import only_v5, scenario


def away(s: Stage, qos: int = 2) -> Client:
    c = s.on("s", keep=True).sub("~/t", qos=qos)
    c.disconnect()
    return c


def payloads(events: list[Any]) -> list[str]:
    return [each.get("payload", each["m"]) for each in events]


@scenario
def messages_wait(s: Stage) -> Observation:
    c = away(s)
    p = s.on("p")
    for qos in (1, 2):
        p.pub("~/t", str(qos), qos=qos)
    return [c.connect(keep=True), c.messages(2), c.rest()]


@scenario
def qos_0_does_not_wait(s: Stage) -> Observation:
    c = away(s)
    p = s.on("p")
    p.publish("~/t", "0")
    p.pub("~/t", "1", qos=1)
    c.on(keep=True)
    return payloads([c.message(), *c.rest()])


@scenario
def subscriptions_of_qos_0_do_not_wait(s: Stage) -> Observation:
    c = away(s, 0)
    s.on("p").pub("~/t", "1", qos=1)
    c.on(keep=True)
    return c.rest()


@scenario
def order_is_kept(s: Stage) -> Observation:
    c = away(s)
    p = s.on("p")
    for number in range(12):
        p.pub("~/t", str(number), qos=1 + number % 2)
    c.on(keep=True)
    return payloads(c.messages(12))


@scenario
def subscriptions_stay(s: Stage) -> Observation:
    c = away(s)
    c.on(keep=True)
    s.on("p").pub("~/t", qos=1)
    return c.message()


@scenario
def qos_1_is_sent_again(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    first = c.take()
    c.drop()
    c.on(keep=True)
    again = c.message()
    c.rest()
    c.drop()
    c.on(keep=True)
    return [first, again, c.rest()]


@scenario
def qos_2_without_pubrec_is_sent_again(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    first = c.take()
    c.drop()
    c.on(keep=True)
    return [first, c.message(), c.rest()]


@scenario
def qos_2_after_pubrec_is_released_again(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    message = c.take()
    c.answer("pubrec", message)
    released = c.take()
    c.drop()
    c.on(keep=True)
    again = c.take()
    c.answer("pubcomp", again)
    rest = c.rest()
    c.drop()
    c.on(keep=True)
    return [message, released, again, rest, c.rest()]


@scenario
def qos_2_pubrec_twice(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    message = c.take()
    c.answer("pubrec", message)
    first = c.take()
    c.answer("pubrec", message)
    return [first, c.rest()]


@scenario
def nothing_is_sent_again_while_connected(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    return [c.take(), c.rest()]


@scenario
def what_was_not_answered_comes_before_what_waited(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=1)
    p = s.on("p")
    p.pub("~/t", "1", qos=1)
    c.take()
    c.disconnect()
    p.pub("~/t", "2", qos=1)
    c.on(keep=True)
    return [(each["payload"], each.get("dup", False)) for each in c.messages(2)]


@scenario
def answers_out_of_order(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=1)
    p = s.on("p")
    for payload in "abc":
        p.pub("~/t", payload, qos=1)
    found = c.several(3)
    c.answer("puback", found[2])
    c.answer("puback", found[0])
    c.rest()
    c.drop()
    c.on(keep=True)
    return [c.message(), c.rest()]


@scenario
def puback_for_a_message_of_qos_2(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    c.answer("puback", c.take())
    return c.rest()


@scenario
def pubrec_for_a_message_of_qos_1(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    c.answer("pubrec", c.take())
    return c.rest()


@scenario
def pubcomp_before_pubrec(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    c.answer("pubcomp", c.take())
    return c.rest()


@scenario
def puback_behind_pubrec(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2)
    message = c.take()
    c.answer("pubrec", message)
    c.take()
    c.answer("puback", message)
    return c.rest()


@only_v5
def messages_expire_while_they_wait(s: Stage) -> Observation:
    c = away(s)
    p = s.on("p")
    p.pub("~/t", "short", qos=1, props={"message_expiry": 1})
    p.pub("~/t", "long", qos=1, props={"message_expiry": 1000})
    s.wait(2.1)
    c.on(keep=True)
    found = [c.message(), *c.rest()]
    return [
        (each["payload"], each["props"]["message_expiry"] in range(990, 1000)) for each in found
    ]


@only_v5
def expiry_counts_from_what_is_left(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1, props={"message_expiry": 1000})
    return c.message()["props"]["message_expiry"] in range(998, 1001)


@only_v5
def expired_after_it_was_sent_is_completed(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=2)
    s.on("p").pub("~/t", qos=2, props={"message_expiry": 1})
    message = c.take()
    s.wait(2.1)
    c.answer("pubrec", message)
    released = c.take()
    c.answer("pubcomp", message)
    return [released, c.rest()]


def expired_when_sent_again(qos: int) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on("s", keep=True).sub("~/t", qos=qos)
        s.on("p").pub("~/t", qos=qos, props={"message_expiry": 1})
        first = c.take()
        c.disconnect()
        s.wait(2.1)
        c.on(keep=True)
        return [first["qos"], [(each["m"], each.get("dup")) for each in c.rest()]]

    return act


TABLE = {
    f"qos_{qos}_expired_when_sent_again": only_v5(expired_when_sent_again(qos)) for qos in (1, 2)
}


@only_v5
def session_expires(s: Stage) -> Observation:
    c = s.on("s", clean=False, props={"session_expiry": 1}).sub("~/t", qos=1)
    c.drop()
    s.wait(3.2)
    return c.connect(keep=True)


@only_v5
def session_does_not_expire_before(s: Stage) -> Observation:
    c = s.on("s", clean=False, props={"session_expiry": 60}).sub("~/t", qos=1)
    c.drop()
    s.wait(1.2)
    return c.connect(keep=True)
