"""The store: objects, their versions and their history. See `store.store` for the model."""

from remuda.embedded.apiserver.store.journal import Journal, MemoryJournal
from remuda.embedded.apiserver.store.record import ADDED, DELETED, MODIFIED, StoredObject, StoreEvent
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.embedded.apiserver.store.store import ObjectStore

__all__ = [
    "ADDED",
    "DELETED",
    "MODIFIED",
    "Journal",
    "MemoryJournal",
    "ObjectStore",
    "SqliteJournal",
    "StoreEvent",
    "StoredObject",
]
