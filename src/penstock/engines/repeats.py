"""Batches that come again: under what their first answer is remembered, and what a repeat is told.

Each engine keeps the answers in its own way (`idempotency_keys.py`).
"""

from __future__ import annotations

from penstock.errors import KeyReused, SequencePassed, SequenceReused
from penstock.values import Appended, Batch, Key, Producer

Owner = tuple[str, str]  # subject, producer
Address = tuple[str, str, str]  # subject, stream, key; a producer's sequence has no stream


def key_address(key: Key) -> Address:
    """Under what the answer to a key is remembered."""
    return key.subject, key.stream, key.key


def check_key(key: Key, digest: bytes) -> None:
    """Raise `KeyReused` if *key* was used for other contents, of this *digest*."""
    if digest != key.digest:
        raise KeyReused(key.key)


def sequence_address(producer: Producer) -> Address:
    """Under what the answer to a producer's sequence is remembered."""
    return producer.subject, "", f"{producer.name}/{producer.sequence}"


def owner_of(producer: Producer) -> Owner:
    """Under what the last sequence of a producer is kept."""
    return producer.subject, producer.name


def addresses(batch: Batch) -> list[tuple[Address, bytes]]:
    """Under what the answer to a batch is remembered, with the digest that must come again."""
    found = [(key_address(batch.key), batch.key.digest)] if batch.key else []
    return [*found, (sequence_address(batch.producer), b"")] if batch.producer else found


def first_answer(
    batch: Batch, producer: Producer, known: Appended | None, last_sequence: int, last: Appended
) -> Appended:
    """The answer to a repeat of a producer's sequence. It never has coordinates of a stream that the batch is not for.

    *known* is the answer of that very sequence. It may be pruned, or the number was left out: then the producer's
    last answer says enough, if it is of the same stream.
    """
    if known is not None and not _is_for(batch, known):
        raise SequenceReused(producer.name, producer.sequence)
    if known is None and not _is_for(batch, last):
        raise SequencePassed(producer.name, producer.sequence, last_sequence)
    return known or last


def _is_for(batch: Batch, answer: Appended) -> bool:
    streams = {draft.stream for draft in batch.drafts}
    return not streams or {answer.first.stream, answer.last.stream} <= streams
