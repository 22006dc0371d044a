"""`cluster demo`: three NATS servers and three nodes on this machine, for a first look."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.demo_folder import interrupt, own_folder
from penstock.cli.serve import demo_lines
from penstock.errors import ConfigInvalid

if TYPE_CHECKING:
    from penstock.testing import NatsCluster, RunningServer


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
    from penstock.testing import start_nats, start_nodes
    from penstock.testing.nats import NatsFailed

    signal.signal(signal.SIGTERM, interrupt)
    with own_folder(data, "penstock-cluster-") as folder, ExitStack() as stack:
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


def _show(nats: NatsCluster, nodes: list[RunningServer]) -> None:
    for server in nats.servers:
        print(f"nats   {server.url}  pid {server.process.pid}")
    for node in nodes:
        print(f"node   {node.url}  pid {node.process.pid}  durability={node.durability}")
    listen, publish = demo_lines(nodes[0].data, nodes[0].url, nodes[1].url)
    print(f"\nListen on one node, in another terminal:\n  {listen}\nPublish on another, in a third:\n  {publish}")
    print("\nCtrl-C ends all of them.", flush=True)
