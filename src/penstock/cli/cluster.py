"""`cluster demo`: three NATS servers and three nodes on this machine, for a first look."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.serve import demo_lines
from penstock.errors import ConfigInvalid

if TYPE_CHECKING:
    from penstock.testing import NatsCluster, RunningServer

NODES = 3

cluster = typer.Typer(no_args_is_help=True, help="Run several nodes on NATS JetStream.")


@cluster.command()
def demo(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep everything here; else it goes away.")] = None,
) -> None:
    """Start three NATS servers and three nodes on loopback, and show how to try them.

    Ends all of them on Ctrl-C. Kill one of the processes it names, and see what happens.

    \b
    ./penstock cluster demo
    """
    from penstock.testing.nats import NatsFailed, start_nats

    signal.signal(signal.SIGTERM, _interrupt)
    with _folder(data) as folder, ExitStack() as stack:
        print("starting three NATS servers and three nodes …", flush=True)
        try:
            nats = stack.enter_context(start_nats(folder / "nats", servers=3))
        except NatsFailed as error:
            raise ConfigInvalid("nats-server", str(error).splitlines()[0], remedy="See docs/cluster.md.") from error
        nodes = start_nodes(stack, folder, nats.url, log_synced=True)
        _show(nats, nodes)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("\nending all of them", flush=True)


def start_nodes(
    stack: ExitStack, folder: Path, engine: str, count: int = NODES, **settings: object
) -> list[RunningServer]:
    """Nodes that share their admin token and the keys that their tokens are signed with."""
    from penstock.api.auth import open_keys
    from penstock.testing import start_server

    places = [folder / f"node-{number}" for number in range(1, count + 1)]
    for place in places:
        place.mkdir(mode=0o700, exist_ok=True)
    open_keys(places[0])
    for place in places[1:]:
        shutil.copy(places[0] / "keys.json", place / "keys.json")
    environment = {"PENSTOCK_AUTH_ADMIN_TOKEN": secrets.token_hex(16)}
    settings = {"server_internal_listen": "127.0.0.1:0", **settings}  # where nodes send on what is another's

    def start(place: Path) -> RunningServer:
        node = stack.enter_context(start_server(place, "--engine", engine, environment=environment, **settings))
        node.admin_token = environment["PENSTOCK_AUTH_ADMIN_TOKEN"]
        return node

    with ThreadPoolExecutor(count) as together:
        return list(together.map(start, places))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-") as made:
        yield Path(made)


def _show(nats: NatsCluster, nodes: list[RunningServer]) -> None:
    for server in nats.servers:
        print(f"nats   {server.url}  pid {server.process.pid}")
    for node in nodes:
        print(f"node   {node.url}  pid {node.process.pid}  durability={node.durability}")
    listen, publish = demo_lines(nodes[0].data, nodes[0].url, nodes[1].url)
    print(f"\nListen on one node, in another terminal:\n  {listen}\nPublish on another, in a third:\n  {publish}")
    print("\nCtrl-C ends all of them.", flush=True)
