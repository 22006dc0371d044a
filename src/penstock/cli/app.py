"""Puts the commands together, and turns every expected failure into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import typer

from penstock import __version__
from penstock.cli import cluster, eventhorizon, msgstream, operations, pipeline, serving, streams, tables, webpush
from penstock.cli.terminal import say
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
for commands in (serving, streams, eventhorizon, operations, tables, webpush, pipeline, cluster, msgstream):
    commands.add_to(app)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        print(f"penstock {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Nothing expected leaves a traceback."""
    try:
        code = app(list(arguments), prog_name="penstock", standalone_mode=False)
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


def exit_code(error: PenstockError) -> int:
    """2 when whoever typed the command can put it right, 1 otherwise."""
    refused = 400 <= getattr(error, "status", 0) < 500
    return MISTAKE if refused or isinstance(error, (CallerError, ConfigInvalid)) else FAILURE


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> int:
    message = " ".join(error.format_message().split())
    if not message:  # no command at all: typer has printed the help
        return MISTAKE
    command = next((word for word in arguments if not word.startswith("-")), "")
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    where = f" {command}" if command in known else ""
    return _fail("usage", message, f"See './penstock{where} --help'.", MISTAKE)


def _fail(code: str, message: str, remedy: str, status: int) -> int:
    from penstock.logs import redact

    # A remedy is our own text: it may spell how a token is sent.
    line = " ".join(f"{redact(message)} — {remedy}".split())
    say(f"penstock: {code}: {line}", sys.stderr)
    return status
