"""Connections that are over, remembered."""

from braidmq.runtime.sessions import HISTORY_MAX, HISTORY_TEXT_MAX, SessionInfo, Sessions


class Ended:
    is_traced = False

    def __init__(self, session_id: str, client: str = "") -> None:
        self.info = SessionInfo(session_id, "amqp", "ann", "/", "peer", 5, client, 1, False)

    def describe(self) -> SessionInfo:
        return self.info


def test_the_last_thousand_are_remembered_the_last_first() -> None:
    sessions = Sessions()
    for number in range(HISTORY_MAX + 7):
        sessions.add(f"s{number}", Ended(f"s{number}"))  # type: ignore[arg-type]
        sessions.remove(f"s{number}", "left", 10 + number)
    every = list(sessions.history())
    assert [each.id for each in every] == [f"s{n}" for n in range(HISTORY_MAX + 6, 6, -1)]
    assert list(sessions.history(every[4].number)) == every[5:]
    assert list(sessions.history(1)) == []
    assert list(sessions.history(10**9)) == every


def test_what_a_peer_says_of_itself_is_cut_and_who_never_came_does_not_end() -> None:
    sessions = Sessions()
    sessions.remove("knocked", "", 1)
    sessions.add("a", Ended("a", "x" * 100_000))  # type: ignore[arg-type]
    sessions.remove("a", "y" * 100_000, 1)
    sessions.remove("a", "again", 2)
    (only,) = sessions.history()
    assert len(only.client) == len(only.reason) == HISTORY_TEXT_MAX
