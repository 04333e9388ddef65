"""Vectors of texts that were read before, in the cache folder, for the next run that reads them.

A vector is known by what it is made of: the encoder, the precision and the text. The cache is bounded, and
what was not asked for longest goes first. It only saves time: where its file cannot be written, or is
damaged, texts are read again.

Shapes: N texts, H of them in the cache, D width.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.files import cache_folder

MOST = 2**30  # bytes of the file; about 1.2 million vectors of width 384
KEPT = 0.75  # of these, after it was full
FORMAT = 1
PATIENCE = 10.0  # seconds to wait for another process that writes
_AT_ONCE = 500  # keys of a query
_DAY = 86_400


class VectorCache:
    """A file of vectors of texts.

    Args:
        path: of the file, which is made when first written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def shared(cls) -> VectorCache | None:
        """The cache of all runs of this user; None where it cannot be written."""
        cache = cls(cache_folder() / "text-vectors.sqlite")
        for _ in range(2):  # one that is damaged is removed the first time
            with suppress(sqlite3.Error, OSError), cache._opened(create=True):
                return cache
        return None

    def get(self, encoder: str, texts: Sequence[str], width: int) -> tuple[IntArray, Floats]:
        """Return the rows ``(H,)`` of the texts that are there, and their vectors ``(H, D)``.

        Args:
            encoder: what the vectors depend on beside the text, in any words.
            width: D.
        """
        rows_of: dict[bytes, list[int]] = {}
        for row, text in enumerate(texts):
            rows_of.setdefault(_key(encoder, text), []).append(row)
        rows, vectors = list[int](), list[bytes]()
        today = int(time.time() // _DAY)
        with suppress(sqlite3.Error, OSError), self._opened(create=False) as file:
            asked = list(rows_of)
            for keys in (asked[at : at + _AT_ONCE] for at in range(0, len(asked), _AT_ONCE)):
                among = f"key IN ({', '.join('?' * len(keys))})"
                known = f"SELECT key, vector FROM vectors WHERE length(vector) = ? AND {among}"
                for key, vector in file.execute(known, (2 * width, *keys)).fetchall():
                    rows += rows_of[key]
                    vectors += [vector] * len(rows_of[key])
                file.execute(f"UPDATE vectors SET day = ? WHERE day < ? AND {among}", (today, today, *keys))
        vectors_HD = np.frombuffer(b"".join(vectors), np.float16).astype(np.float32)
        return np.array(rows, np.int64), vectors_HD.reshape(len(rows), width)

    def put(self, encoder: str, texts: Sequence[str], vectors_ND: Floats) -> None:
        """Keep the vectors of some texts, as float16."""
        today = int(time.time() // _DAY)
        rows = [
            (_key(encoder, text), vector_D.tobytes(), today)
            for text, vector_D in zip(texts, vectors_ND.astype(np.float16), strict=True)
        ]
        with suppress(sqlite3.Error, OSError), self._opened(create=True) as file:
            file.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
            self._bound(file)

    def _bound(self, file: sqlite3.Connection) -> None:
        """Remove what was not asked for longest, where the file has become too large."""
        pages, free, size = (
            file.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * size <= MOST:
            return
        (count,) = file.execute("SELECT count(*) FROM vectors").fetchone()
        old = "SELECT key FROM vectors ORDER BY day LIMIT ?"
        file.execute(f"DELETE FROM vectors WHERE key IN ({old})", (count - int(count * KEPT),))

    @contextmanager
    def _opened(self, create: bool) -> Iterator[sqlite3.Connection]:
        """The file in a transaction; one that is damaged, or of another format, is removed.

        Raises:
            OSError, sqlite3.Error: when it cannot be used.
        """
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        elif not self.path.is_file():
            raise FileNotFoundError(self.path)
        try:
            with closing(sqlite3.connect(self.path, PATIENCE)) as file, file:
                # The cache may lose its last seconds, which saves a write to the disk for each batch.
                file.execute("PRAGMA synchronous = OFF")
                version = file.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, FORMAT):
                    raise sqlite3.DatabaseError("another format")
                if version != FORMAT:
                    file.execute(
                        "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL, "
                        "day INTEGER NOT NULL) WITHOUT ROWID"
                    )
                    file.execute(f"PRAGMA user_version = {FORMAT}")
                yield file
        except sqlite3.OperationalError:  # busy, read-only or full
            raise
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            raise


def _key(encoder: str, text: str) -> bytes:
    return sha256(f"{encoder}\0{text}".encode(errors="surrogatepass")).digest()[:16]
