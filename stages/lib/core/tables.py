"""Read and write tables: Parquet files with checksums of their own bytes, complete or absent.

A file's seal stands between its data and its footer, where readers of Parquet do not look, so
every program can read these files. Parquet has checksums itself, but only of values, not of what
tells where they are and what they mean.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import polars as pl

from stages.lib.core.files import replacing, way_out
from stages.lib.core.storage import pieces, place

# MARK, the CRC-32 of the data before the seal, and that of the footer after it, which starts from
# the former
SEAL = struct.Struct("<8sII")
MARK = b"\0CRC-32\0"
END = struct.Struct("<I4s")  # ends every Parquet file: the length of its footer, and PARQUET
PARQUET = b"PAR1"
AT_ONCE = 1 << 20  # bytes read at once
LONGEST = 1 << 22  # bytes of a footer at most


class TableError(RuntimeError):
    """A table whose file is damaged."""


def write_table(frame: pl.DataFrame, path: Path, shared: bool = False) -> None:
    """Write a sealed file, complete or not at all.

    shared: several processes may write it at once (see files.replacing).
    """
    with replacing(path, shared) as partial:
        frame.write_parquet(partial)
        seal(partial)


def read_table(path: str | Path, columns: list[str] | None = None) -> pl.DataFrame:
    """Return a table, or some of its columns. Raises TableError if its file is damaged."""
    check([place(path)])
    try:
        return pl.read_parquet(pieces(place(path)), columns=columns)
    except pl.exceptions.ComputeError as error:  # without a seal, it may not be a table
        raise damaged(place(path), str(error)) from None


def seal(path: Path) -> None:
    """Write the seal of a Parquet file into it."""
    with path.open("rb+") as file:
        start = _footer(file, path)
        of_data = _checksum(file, start)
        footer = file.read()
        file.seek(start)
        file.write(SEAL.pack(MARK, of_data, zlib.crc32(footer, of_data)) + footer)


def check(files: Iterable[Path], data: bool = True) -> None:
    """Raise TableError on the first file that differs from what was sealed.

    Files without a seal, of other programs, pass. data: whether to read the data; else only what a
    reader must trust to open the file, which takes no time.
    """
    for path in files:
        if not path.is_file():
            way_out = "`dvc repro` makes it, `make pull` fetches it"
            raise TableError(f"there is no table {path}; {way_out}")
        with path.open("rb") as file:
            start = max(0, _footer(file, path) - SEAL.size)
            file.seek(start)
            mark, of_data, of_footer = SEAL.unpack(file.read(SEAL.size))
            footer = file.read()
            if mark != MARK:
                file.seek(max(0, file.tell() - LONGEST))
                if MARK in file.read():  # the footer's length is wrong
                    raise damaged(path)
            elif of_footer != zlib.crc32(footer, of_data) or (
                data and of_data != _checksum(file, start)
            ):
                raise damaged(path)


def damaged(path: Path, why: str = "its bytes are not those that were written") -> TableError:
    """Return the error for a damaged file."""
    return TableError(f"{path} is damaged: {why}; {way_out(path)}")


def _footer(file: BinaryIO, path: Path) -> int:
    """Return where the footer starts. Raises TableError if there is none."""
    size = file.seek(0, 2)
    file.seek(max(0, size - END.size))
    end = file.read()
    length, magic = END.unpack(end) if len(end) == END.size else (0, b"")
    is_small = size < SEAL.size + END.size  # no table is that small
    if magic != PARQUET or not 0 < length <= size - END.size or is_small:
        raise damaged(path)
    return size - END.size - length


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the CRC-32 of the bytes before `end`, and leave the file there."""
    file.seek(0)
    checksum = 0
    while file.tell() < end:
        checksum = zlib.crc32(file.read(min(end - file.tell(), AT_ONCE)), checksum)
    return checksum
