"""Which ids a server gave to the documents of which episode: a SQLite file on this machine.

The public server gives its own ids and never replaces a document. To replace an episode, the client must know the ids
of its old documents; a search for them may miss some.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from shard_format.errors import ShardIOError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wshard.search._dialects import Key

_TABLE = """
CREATE TABLE IF NOT EXISTS documents (
    server TEXT NOT NULL, collection TEXT NOT NULL, id INTEGER NOT NULL,
    episode TEXT NOT NULL, chunk INTEGER NOT NULL, is_old INTEGER NOT NULL,
    PRIMARY KEY (server, collection, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_episode ON documents (server, collection, episode, chunk);
"""
_OF_EPISODE = "server = ? AND collection = ? AND episode = ? AND chunk = ?"


def default_path() -> str:
    """Where the map is unless the user names another place."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join("~", ".local", "state")
    return os.path.join(os.path.expanduser(state), "shard-format", "search-ids.sqlite")


class IdMap:
    """The ids of one server's documents. Several processes may use one file.

    Args:
        path: of the file; its folder is created.
        server: what tells one server from another.
    """

    def __init__(self, path: str, server: str) -> None:
        self.path = path
        self._server = server

    def mark_old(self, collection: str, keys: Iterable[Key]) -> None:
        """Note that the documents of these episodes are about to be replaced."""
        rows = [(*self._of(collection), *_row(key)) for key in keys]
        with self._opened() as database:
            database.executemany(f"UPDATE documents SET is_old = 1 WHERE {_OF_EPISODE}", rows)

    def add(self, collection: str, ids: Iterable[tuple[Key, int]]) -> None:
        """Note the ids that the server gave to new documents."""
        rows = [(*self._of(collection), id_, *_row(key)) for key, id_ in ids]
        with self._opened() as database:
            # A server that lost its data gives the same ids again.
            database.executemany("REPLACE INTO documents VALUES (?, ?, ?, ?, ?, 0)", rows)

    def old(self, collection: str, keys: Iterable[Key]) -> dict[int, str]:
        """The ids that `mark_old` has marked, with their episodes."""
        query = f"SELECT id, episode FROM documents WHERE is_old AND {_OF_EPISODE}"
        with self._opened() as database:
            found: dict[int, str] = {}
            for key in keys:
                found.update(database.execute(query, (*self._of(collection), *_row(key))))
            return found

    def forget(self, collection: str, ids: Iterable[int]) -> None:
        """Remove ids whose documents are gone."""
        query = "DELETE FROM documents WHERE server = ? AND collection = ? AND id = ?"
        with self._opened() as database:
            database.executemany(query, [(*self._of(collection), id_) for id_ in ids])

    def forget_all(self, collection: str) -> None:
        """Remove all ids of a collection that was dropped."""
        with self._opened() as database:
            query = "DELETE FROM documents WHERE server = ? AND collection = ?"
            database.execute(query, self._of(collection))

    def _of(self, collection: str) -> tuple[str, str]:
        return self._server, collection

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is in the file at the end, or nothing."""
        try:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
                database.executescript(_TABLE)
                with database:
                    yield database
        except (sqlite3.Error, OSError) as error:
            failure = ShardIOError(
                f"cannot use the map of the server's ids: {error}",
                path=self.path,
                hint="name another file with ServerOptions(id_map=…), or remove this one: then episodes that are "
                "ingested again leave their old documents in the index",
            )
            raise failure from error


def _row(key: Key) -> tuple[Any, ...]:
    episode, chunk = key
    return episode, -1 if chunk is None else chunk
