"""Puts the commands together, and turns every expected failure into one line and an exit code."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Sequence

import typer
from typer.models import CommandInfo

from penstock import __version__
from penstock.cli import (
    backup,
    cluster,
    development,
    doctor,
    eventhorizon,
    lake,
    msgstream,
    pipeline,
    serve,
    streams,
    tokens,
    typed_tables,
    webpush,
)
from penstock.cli.demo.command import demo
from penstock.cli.output import say
from penstock.errors import CallerError, ConfigInvalid, PenstockError

MISTAKE, FAILURE, INTERRUPTED = 2, 1, 130

log = logging.getLogger("penstock")
log.addHandler(logging.NullHandler())  # only a server has a log; see logs.set_up

app = typer.Typer(
    name="penstock",
    help="A push server with proof of delivery.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
for command in (
    *(serve.up, serve.serve, demo),
    *(streams.publish, streams.tail, streams.streams, streams.why),
    eventhorizon.pusher,
    *(tokens.token, tokens.keys),
    *(backup.backup, backup.restore),
    doctor.doctor,
):
    app.command()(command)
app.command(context_settings=PASS_ON)(development.bench)
app.command("test", context_settings=PASS_ON)(development.run_tests)
app.command()(webpush.tables)
app.command()(pipeline.audit)
app.command(context_settings=PASS_ON)(pipeline.pipeline)
app.command()(msgstream.session)
app.command()(msgstream.emit)
app.add_typer(eventhorizon.stream, name="stream")
typed_tables.add_to(lake.lake)
app.add_typer(lake.lake, name="lake")
app.add_typer(webpush.webpush, name="webpush")
app.add_typer(cluster.cluster, name="cluster")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        print(f"penstock {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Nothing expected leaves a traceback."""
    try:
        code = _with_what_is_called(arguments)(list(arguments), prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except PenstockError as error:
        return _fail(error.code, str(error), error.remedy, exit_code(error))
    except typer.TyperException as error:
        return _usage(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing more may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail("system", where + (error.strerror or str(error)), "Look at that file or address.", FAILURE)
    except Exception as error:  # the outermost place: nothing may leave a bare traceback
        log.critical("crashed", exc_info=error)
        return _fail("internal", f"{type(error).__name__}: {error}", PenstockError.remedy, FAILURE)


def _with_what_is_called(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that is called: typer takes longer over all of them than most commands."""
    name = next(iter(arguments), "")
    chosen = copy.copy(app)
    chosen.registered_commands = [info for info in app.registered_commands if _name(info) == name]
    chosen.registered_groups = [info for info in app.registered_groups if info.name == name]
    return chosen if chosen.registered_commands or chosen.registered_groups else app


def _name(info: CommandInfo) -> str:
    return info.name or str(getattr(info.callback, "__name__", ""))


def exit_code(error: PenstockError) -> int:
    """2 when whoever typed the command can put it right, 1 otherwise."""
    refused = 400 <= getattr(error, "status", 0) < 500
    return MISTAKE if refused or isinstance(error, (CallerError, ConfigInvalid)) else FAILURE


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> int:
    message = " ".join(error.format_message().split())
    if not message:  # no command at all: typer has printed the help
        return MISTAKE
    command = next((word for word in arguments if not word.startswith("-")), "")
    known = {_name(info) for info in app.registered_commands}
    where = f" {command}" if command in known else ""
    return _fail("usage", message, f"See './penstock{where} --help'.", MISTAKE)


def _fail(code: str, message: str, remedy: str, status: int) -> int:
    from penstock.logs import redact

    # A remedy is our own text: it may spell how a token is sent.
    line = " ".join(f"{redact(message)} — {remedy}".split())
    say(f"penstock: {code}: {line}", sys.stderr)
    return status
