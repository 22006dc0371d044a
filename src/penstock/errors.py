"""The errors that callers, peers and operators see, sorted by who must act. Modules add their own below these.

    PenstockError
    ├── PeerError             the other side broke a protocol: close that connection, wake nobody
    ├── CallerError           our caller asked for something wrong: nothing happened
    │   ├── InputInvalid          a field, parameter or body that cannot be understood
    │   │   └── NameInvalid           a stream name or pattern
    │   ├── TooLarge              over a limit of limits.py
    │   ├── NotFound              no such stream, record, item …
    │   ├── Conflict              the state is another than the caller believes
    │   │   ├── StreamExists
    │   │   ├── PositionMismatch
    │   │   ├── KeyReused
    │   │   ├── SequenceReused
    │   │   ├── SequencePassed
    │   │   └── VersionMismatch
    │   ├── Trimmed               that part of the log is no longer here
    │   ├── Unauthenticated       we do not know who is asking
    │   └── Forbidden             we know, and the answer is no
    │       └── SystemStream          … to everybody: the stream is the server's own
    ├── Busy                  a limit was reached: the same call may succeed later
    │   └── MailboxFull
    └── OperatorError         somebody must look after this server
        ├── DiskFull
        ├── EngineGone
        │   └── NotRecorded
        ├── DataLocked
        ├── DataCorrupt
        └── ConfigInvalid

An error that is about numbers carries them and builds its sentence from them. `code` is stable: programs
may rely on it. `status` is what it is answered with over HTTP, `remedy` says what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping


class PenstockError(Exception):
    """Base of the errors that have a code and a remedy. Exceptions that never leave a module need not be one."""

    code = "internal"
    status = 0  # of the answer over HTTP; 0: it is answered with 500, and only the log has its words
    remedy = "This is a defect of the server: please report it with the server's log."

    @property
    def numbers(self) -> Mapping[str, int]:
        """Numbers that a program goes on with; its answer has them."""
        return {}


class PeerError(PenstockError):
    """The other side broke the protocol. Close that connection; wake nobody."""

    code = "protocol"
    remedy = "Send what the protocol allows."

    def __init__(self, status: int, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail
        self.remedy = remedy or PeerError.remedy


class CallerError(PenstockError):
    """The caller asked for something wrong. Nothing happened."""

    code = "bad_request"
    remedy = "Correct the request and send it again."


class InputInvalid(CallerError):
    """A field, parameter or body cannot be understood."""

    status = 400

    def __init__(self, what: str, why: str, *, code: str = "input_invalid", remedy: str = "") -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why, self.code = what, why, code
        self.remedy = remedy or CallerError.remedy


class NameInvalid(InputInvalid):
    """A stream name or pattern breaks the rules for names."""

    def __init__(self, name: str, why: str) -> None:
        shown = name if len(name) <= 80 else name[:77] + "…"
        super().__init__(
            f"stream name {shown!r}",
            why,
            code="stream_name_invalid",
            remedy="Names look like /orders/eu: 1 to 16 levels of 1 to 128 bytes, 512 bytes in all, "
            "without ':' ',' '*' '>', white space or control characters.",
        )


class TooLarge(CallerError):
    """Something is over a limit of limits.py."""

    status = 413
    code = "too_large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} of {size:,} is over the limit of {limit:,}")
        self.what, self.size, self.limit = what, size, limit
        self.remedy = f"Send at most {limit:,}; docs/limits.md gives the reason for the limit."


class NotFound(CallerError):
    """There is no such thing here."""

    status = 404

    def __init__(self, what: str, name: str, *, code: str = "not_found", remedy: str = "") -> None:
        super().__init__(f"no {what} {name!r}")
        self.what, self.name, self.code = what, name, code
        self.remedy = remedy or f"Check the name of the {what}."


class Conflict(CallerError):
    """The state is another than the caller believes."""

    status = 409
    code = "conflict"


class StreamExists(Conflict):
    """A stream that should be new is there already."""

    code = "stream_exists"
    remedy = "Append to it, or choose another name."

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} exists already")
        self.stream = stream


class PositionMismatch(Conflict):
    """The stream is not where the caller expected it."""

    code = "position_mismatch"
    remedy = "Read what was appended meanwhile, then append at the position given here."

    def __init__(self, stream: str, expected: str, actual: str) -> None:
        super().__init__(f"stream {stream!r} is at {actual}, not at {expected}")
        self.stream, self.expected, self.actual = stream, expected, actual


class KeyReused(Conflict):
    """An idempotency key came again with other contents."""

    code = "idempotency_key_reused"
    remedy = "Use a new key for new contents; repeat a request with exactly the same body."

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used for another body")
        self.key = key


class SequenceReused(Conflict):
    """A producer's sequence came again for another stream. Nothing was stored now."""

    code = "producer_sequence_reused"
    remedy = "Number the batches of all streams of a producer together, or name one producer for each stream."

    def __init__(self, name: str, sequence: int) -> None:
        super().__init__(f"sequence {sequence} of producer {name!r} was used for another stream")


class SequencePassed(Conflict):
    """A sequence is below the producer's last, which went to another stream, and its own answer is not kept."""

    code = "producer_sequence_passed"
    remedy = "If it is a repeat, it was stored the first time; else use a higher sequence or another producer."

    def __init__(self, name: str, sequence: int, last: int) -> None:
        super().__init__(
            f"sequence {sequence} of producer {name!r} is not above its last, {last}, and its answer is not kept"
        )


class VersionMismatch(Conflict):
    """A registry record was changed by somebody else."""

    code = "version_mismatch"
    remedy = "Read the record again and decide anew."

    def __init__(self, key: str, expected: int | None, actual: int | None) -> None:
        super().__init__(f"record {key!r} is at version {actual}, not {expected}")
        self.key, self.expected, self.actual = key, expected, actual


class Trimmed(CallerError):
    """That part of the log is no longer here."""

    status = 410
    code = "range_trimmed"
    remedy = "Start at or after the id given here, or read the older part from the lake."

    def __init__(self, after: int, trimmed_upto: int) -> None:
        super().__init__(f"entries up to id {trimmed_upto} were trimmed; asked for those after {after}")
        self.after, self.trimmed_upto = after, trimmed_upto

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"trimmed_upto": self.trimmed_upto}


class Unauthenticated(CallerError):
    """We do not know who is asking."""

    status = 401
    code = "unauthenticated"
    remedy = "Send 'Authorization: Bearer TOKEN'; './penstock token' makes one."

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent  # a token came, and is not valid


class Forbidden(CallerError):
    """We know who is asking, and the answer is no."""

    status = 403
    code = "forbidden"

    def __init__(self, subject: str, grant: str, target: str) -> None:
        """*grant* is publish or subscribe, a grant by name ("grant"), a user's or the admin's own right, or a verb."""
        match grant:
            case "publish" | "subscribe":
                said = f"may not {grant} {target!r}"
                self.remedy = f"Use a token made with --{grant} and a pattern that covers {target}."
            case "grant":
                said = f"has no grant {target!r}"
                self.remedy = f"Use a token made with --grant {target}."
            case "user":
                said = f"is not the user {target!r}"
                self.remedy = f"Use a token made with --sub {target}."
            case "admin":
                said = f"may not use {target!r}: only the admin may"
                self.remedy = "Use the admin token: auth.admin_token, or admin.token in the data directory."
            case _:
                said = f"may not {grant} {target!r}"
                self.remedy = "Ask whoever runs the server for that right."
        super().__init__(f"{subject!r} {said}")
        self.subject, self.grant, self.target = subject, grant, target


class SystemStream(Forbidden):
    """A stream of the server's own: nobody else writes there, not even the admin.

    The server trusts what it reads there: the ledger, the requests to erase, the presence of devices.
    """

    code = "system_stream"

    def __init__(self, subject: str, stream: str) -> None:
        super().__init__(subject, "publish", stream)
        self.remedy = f"Nobody writes to {stream} but the server itself: use a name that does not begin with /_."


class Busy(PenstockError):
    """A limit was reached, a setting or another. Nothing happened; the same call may succeed later."""

    status = 503
    code = "busy"
    retry_after = 1

    def __init__(self, limit: str, value: int) -> None:
        super().__init__(f"{limit} of {value:,} reached")
        self.limit, self.value = limit, value
        self.remedy = f"Try again in {self.retry_after} s" + (f", or raise {limit}." if "." in limit else ".")


class MailboxFull(Busy):
    """A recipient has so many unconfirmed items that its mailbox takes no more. Nothing was stored."""

    status = 507  # not 503: whoever sends must not hold back what is for others
    code = "mailbox_full"
    retry_after = 120

    def __init__(self, recipient: str, what: str, limit: int) -> None:
        PenstockError.__init__(self, f"{limit:,} {what} wait for {recipient} already")
        self.recipient, self.limit, self.value = recipient, what, limit
        self.remedy = f"Try again in {self.retry_after} s: there is room when the recipient was there."


class OperatorError(PenstockError):
    """Somebody must look after this server."""

    code = "operator"


class DiskFull(OperatorError):
    """The disk took no more. Nothing of this call was stored."""

    status = 507
    code = "disk_full"
    remedy = "Free space on the server's data directory; it goes on by itself."
    retry_after = 5


class EngineGone(OperatorError):
    """The storage engine does not answer or was closed. What was not acknowledged may be lost."""

    status = 503
    code = "engine_gone"
    remedy = "Look at the server's log, then restart it."
    retry_after = 5


class NotRecorded(EngineGone):
    """The ledger can never write down what this call did: the log refuses it, now and always."""

    code = "not_recorded"
    remedy = "Look for ledger.refused in the server's log: a name in a record is longer than an entry."

    def __init__(self, records: int, why: str) -> None:
        super().__init__(f"{records:,} records were not written down: {why}")
        self.records = records


class DataLocked(OperatorError):
    """Another process holds the data directory."""

    code = "data_locked"

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(f"data directory {path} is in use by {owner}")
        self.remedy = "Stop that process, or give this one another --data directory."


class DataCorrupt(OperatorError):
    """The data file is damaged, or is not ours."""

    status = 503
    code = "data_corrupt"
    remedy = "Restore a backup with './penstock restore' into a new directory, and start the server on that."

    def __init__(self, path: str, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{path} cannot be trusted: {' '.join(detail.split())}")
        self.remedy = remedy or self.remedy


class ConfigInvalid(OperatorError):
    """A setting is unknown or has a value it cannot have."""

    code = "config_invalid"

    def __init__(self, setting: str, why: str, *, remedy: str = "") -> None:
        super().__init__(f"setting {setting}: {why}")
        self.setting = setting
        self.remedy = remedy or "See './penstock serve --help' and docs/operations.md."
