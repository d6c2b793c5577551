"""``braid transactions``."""

import httpx
from commands import Cli

GUEST = ("guest", "guest")


def test_transactions_are_listed_and_ended(cli: Cli, topic: str) -> None:
    with httpx.Client(base_url=cli.node.http_url, auth=GUEST) as api:
        for name in (f"{topic}-1", f"{topic}-2"):
            api.post("/v1/transactions", json={"name": name}).raise_for_status()
            api.post(
                f"/v1/topics/{topic}/messages",
                json={"value": "v", "partition": 0},
                headers={"Braid-Transaction": name},
            ).raise_for_status()
    first, second = [each for each in cli.json("transactions", "list") if topic in each["name"]]
    assert first["holds"][0]["behind"] == 2
    assert second["holds"][0]["behind"] == 0
    rows = [row for row in cli.rows("transactions", "list") if topic in row]
    assert "ongoing" in rows[0]
    assert cli.json("transactions", "abort", "--yes", f"{topic}-1")["outcome"] == "aborted"
    assert cli.json("transactions", "commit", f"{topic}-2")["outcome"] == "committed"
    shown = cli.ok("transactions", "show", f"{topic}-2")
    assert "committed" in shown
    assert not [each for each in cli.json("transactions", "list") if topic in each["name"]]
