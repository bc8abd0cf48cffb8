"""The store: objects, their versions and their history. See `store.store` for the model."""

from remuda.apiserver.store.journal import Journal, MemoryJournal
from remuda.apiserver.store.record import ADDED, DELETED, MODIFIED, Event, Record
from remuda.apiserver.store.sqlite import SqliteJournal
from remuda.apiserver.store.store import Store

__all__ = ["ADDED", "DELETED", "MODIFIED", "Event", "Journal", "MemoryJournal", "Record", "SqliteJournal", "Store"]
