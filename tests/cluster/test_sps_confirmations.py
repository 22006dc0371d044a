"""What a killed node has sent is confirmed when its devices come to another one."""

from __future__ import annotations

from penstock.testing import RunningServer, wait_until
from tests.api.client import ask
from tests.doors.sps_client import Wire, new_user, notify_id


def verdicts(node: RunningServer, ids: list[int], recipient: str) -> list[str]:
    return [ask(node, "GET", "/v1/why", entry=id, recipient=recipient).json["verdict"] for id in ids]


def test_a_device_of_a_killed_node_confirms_at_another(nodes: list[RunningServer]) -> None:
    uid = new_user()
    first, second, third = nodes
    with Wire(first, uid=uid, hid="phone").opened() as wire:
        ids = [notify_id(second, "user", uid=uid) for _ in range(3)]
        other = [notify_id(second, "user", uid=uid, hid="tv")]
        wire.lines(3)
        assert verdicts(first, ids, f"{uid}/phone") == ["sent"] * 3
        first.kill()
    with Wire(second, uid=uid, hid="phone", o=ids[1]).opened() as wire:
        assert wire.line()["id"] == ids[2]
        wait_until(lambda: verdicts(third, ids, f"{uid}/phone") == ["acked", "acked", "sent"])
        # while the killed node still counts as one that lives, nobody knows what it may have recorded
        wait_until(lambda: verdicts(third, other, f"{uid}/phone") == ["no_record"])
    first.restart()
