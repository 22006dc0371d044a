"""The embedded engine: one SQLite file, one writer thread, group commit. docs/storage.md draws it."""

from penstock.engines.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
