"""Files read as text or bytes, uncompressed or compressed with gzip or zstd, within the limits on their size."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any, TextIO

from servesim.limits import limits, too_much

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
DAMAGED = "the compressed file is damaged or cut short"
BLOCK = 1 << 20
FREELY_UNPACKED = 16 << 20
"""Number of bytes to which any compressed file may expand; beyond it, the ratio is checked for each further part of
this size."""


def _most_unpacked(packed: int) -> int:
    return max(FREELY_UNPACKED, packed * limits().ratio)


class _Counted:
    """Pipe that knows how many of its bytes have been read."""

    def __init__(self, source: Any) -> None:
        self._source, self._count = source, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self._count += len(data)
        return data

    def tell(self) -> int:
        return self._count

    def close(self) -> None:
        self._source.close()


class _Bounded(io.RawIOBase):
    """Reader that counts the bytes of a file: in total, per line and, if the file is compressed, relative to the
    compressed bytes read. `packed` is the compressed file, whose position tells how much of it has been read."""

    def __init__(self, path: Path, source: Any, packed: Any = None) -> None:
        self._path, self._source, self._packed, self._limits = path, source, packed, limits()
        self._count = self._line = 0
        self._checked = (0, 0)  # uncompressed and compressed bytes at the last check

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; raise UserError if a limit is exceeded."""
        data = self._source.read(min(len(buffer), BLOCK))
        size = len(data)
        buffer[:size] = data
        self._count += size
        end = data.rfind(b"\n")
        self._line = size - end - 1 if end >= 0 else self._line + size
        if self._count > self._limits.bytes:
            raise too_much(self._path, "bytes of text are", "bytes")
        if self._packed is not None and self._count - self._checked[0] > FREELY_UNPACKED:
            now = self._count, self._packed.tell()
            if now[0] - self._checked[0] > (now[1] - self._checked[1]) * self._limits.ratio:
                raise too_much(self._path, "uncompressed bytes per compressed byte are", "ratio")
            self._checked = now
        if self._line > self._limits.line:
            raise too_much(self._path, "bytes of one line are", "line")
        return size

    def close(self) -> None:
        """Close the underlying files too."""
        self._source.close()
        if self._packed is not None:
            self._packed.close()
        super().close()


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a text file, uncompressed or compressed with gzip or (unless it is a pipe) zstd; reading past a limit raises
    UserError. Raise OSError if it cannot be opened."""
    text = io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline=newline)
    text._CHUNK_SIZE = BLOCK >> 2  # type: ignore[attr-defined]  # bytes decoded at once: fewer calls of readinto
    return text


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file in binary mode, decompressing it within the limits."""
    return io.BufferedReader(_bounded(path), BLOCK)


def _bounded(path: Path) -> _Bounded:
    if path.is_fifo():
        return _bounded_pipe(path)
    with path.open("rb") as start:
        magic, size = start.read(4), os.fstat(start.fileno()).st_size
        if magic.startswith(GZIP) and size > 18:  # ends with its uncompressed size (4 bytes) unless truncated
            start.seek(-4, os.SEEK_END)
            if int.from_bytes(start.read(4), "little") > _most_unpacked(size):
                raise too_much(path, f"{DAMAGED}, or uncompressed bytes per compressed byte are", "ratio")
    if magic.startswith(GZIP):
        packed = path.open("rb", buffering=0)
        return _Bounded(path, gzip.open(packed), packed)  # closed with text
    if magic == ZSTD:
        import pyarrow as pa

        packed = pa.OSFile(str(path))
        return _Bounded(path, pa.CompressedInputStream(packed, "zstd"), packed)
    return _Bounded(path, path.open("rb"))


def _bounded_pipe(path: Path) -> _Bounded:
    source = path.open("rb")
    counted = _Counted(source)
    packed = source.peek(2).startswith(GZIP)
    return _Bounded(path, gzip.open(counted), counted) if packed else _Bounded(path, source, None)  # type: ignore[call-overload]
