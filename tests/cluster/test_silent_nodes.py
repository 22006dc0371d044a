"""What nodes say of a whole cluster, or workers of a whole machine, while one of them has stopped for a moment.

A node that does not answer may have anything: the others say that they do not know, and never that there is nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, Tail, ask, publish
from tests.api.test_v1_recipients import act
from tests.cluster.homes import new_prefix
from tests.doors.sps_client import Wire


class GuessingNode(RunningServer):
    """A node that takes silence for a no."""

    module = "tests.faults.guessing_node"


@contextmanager
def two_nodes(folder: Path, engine: str, asked: type[RunningServer] = RunningServer) -> Iterator[list[RunningServer]]:
    """The first is of that kind."""
    prefix, nodes = new_prefix(), list[RunningServer]()
    try:
        for name, kind in (("first", asked), ("second", RunningServer)):
            arguments = ["--engine", engine, f"--set=server.node={name}"]
            if engine.startswith("nats:"):
                arguments += [f"--set=log.prefix={prefix}", "--set=log.replicas=1"]
            nodes.append(kind(folder / name, tuple(arguments), {}))
        yield nodes
    finally:
        for node in nodes:
            node.stop()


@contextmanager
def stopped(node: RunningServer) -> Iterator[None]:
    """It does nothing for as long as the block lasts: seconds, or the others take it for dead."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def check_silence_is_no_answer(first: RunningServer, second: RunningServer) -> None:
    """Ask the first about a reader, a device and a record of the second while that one is stopped."""
    with Tail(second, "/s", consumer="reader"), Wire(second, hid="phone").opened() as device:
        id = publish(first, "/t").json["id"]
        is_machine = first.arguments[1].startswith("unix:")
        wait_until(lambda: _why(first, id, "reader").json["verdict"] == "not_subscribed")
        wait_until(lambda: ask(first, "GET", "/online", uid=device.uid).json["online"])
        with stopped(second), ThreadPoolExecutor() as at_once:
            why = at_once.submit(_why, first, id, "reader")
            item = at_once.submit(_why, first, "no-such-message", "reader")
            everybody = at_once.submit(ask, first, "GET", "/v1/why/recipients", entry=id)
            consumers = at_once.submit(ask, first, "GET", "/v1/consumers")
            online = at_once.submit(ask, first, "GET", "/online", uid=device.uid)
            living = at_once.submit(ask, first, "POST", "/subsist", uid=device.uid, hid="phone")
            recipients = at_once.submit(ask, first, "GET", "/v1/recipients")
            ended = at_once.submit(act, first, "wire", f"{device.uid}/phone", "disconnect")
        told = why.result().json
        assert told["verdict"] == "unknown"
        assert "one of the server's processes did not answer" in told["words"]
        assert everybody.result().json["complete"] is False
        assert consumers.result().json["silent"] == int(is_machine)  # of a cluster each node answers for itself
        assert (recipients.result().json["complete"], recipients.result().json["silent"]) == (False, 1)
        for reply in (item, online, living, ended):
            assert (reply.result().status, reply.result().code) == (503, "node_silent")
            assert reply.result().headers["retry-after"] == "1"
    # Then it goes on, and all is known
    wait_until(lambda: _why(first, id, "reader").json["verdict"] == "no_record")
    wait_until(lambda: ask(first, "GET", "/online", uid=device.uid).json == {"online": False, "devices": []})


def _why(node: RunningServer, entry: object, recipient: str) -> Reply:
    return ask(node, "GET", "/v1/why", entry=entry, recipient=recipient)


def test_who_does_not_answer_is_not_taken_for_one_that_has_nothing(tmp_path: Path, engine: str) -> None:
    with two_nodes(tmp_path, engine) as (first, second):
        check_silence_is_no_answer(first, second)


def test_the_same_check_finds_a_node_that_takes_silence_for_a_no(tmp_path: Path, engine: str) -> None:
    with two_nodes(tmp_path, engine, GuessingNode) as (first, second), pytest.raises(AssertionError, match="no_record"):
        check_silence_is_no_answer(first, second)
