"""Tables: Parquet files that are whole or not there, and that carry checksums of themselves, so that a changed byte is refused, not read.

A file's seal stands between its data and its footer, where no reader of Parquet looks: every program reads these files. Parquet has
checksums of its own, but only of values, not of what says where these are and what they mean.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import polars as pl

from stages.lib.core.files import replacing, way_out
from stages.lib.core.storage import pieces, place

SEAL = struct.Struct(
    "<8sII"
)  # MARK, the CRC-32 of the data in front of it, and that of all behind it, which starts from the former
MARK = b"\0CRC-32\0"
END = struct.Struct("<I4s")  # of every Parquet file: the length of its footer, and PARQUET
PARQUET = b"PAR1"
AT_ONCE = 1 << 20  # bytes read at once
LONGEST = 1 << 22  # bytes of a footer


class TableError(RuntimeError):
    """A table whose file is damaged."""


def write_table(frame: pl.DataFrame, path: Path, shared: bool = False) -> None:
    """A sealed file, whole or not there. shared: several processes may write it at once (see files.replacing)."""
    with replacing(path, shared) as partial:
        frame.write_parquet(partial)
        seal(partial)


def read_table(path: str | Path, columns: list[str] | None = None) -> pl.DataFrame:
    """A table, or some columns of it. Raises TableError where its file is damaged."""
    check([place(path)])
    try:
        return pl.read_parquet(pieces(place(path)), columns=columns)
    except pl.exceptions.ComputeError as error:  # one that was never sealed may be no table
        raise damaged(place(path), str(error)) from None


def seal(path: Path) -> None:
    """Puts its seal into a Parquet file."""
    with path.open("rb+") as file:
        place = _footer(file, path)
        of_data = _checksum(file, place)
        footer = file.read()
        file.seek(place)
        file.write(SEAL.pack(MARK, of_data, zlib.crc32(footer, of_data)) + footer)


def check(files: Iterable[Path], data: bool = True) -> None:
    """Raises TableError, naming it, on a file that is not as it was sealed. One that never was, of another program, is not judged.

    data: whether its data are looked at, too; without, only what a reader must trust to open it, which takes no time.
    """
    for path in files:
        if not path.is_file():
            way_out = "`dvc repro` makes it, `make pull` fetches it"
            raise TableError(f"there is no table {path}; {way_out}")
        with path.open("rb") as file:
            place = max(0, _footer(file, path) - SEAL.size)
            file.seek(place)
            (mark, of_data, of_footer), footer = SEAL.unpack(file.read(SEAL.size)), file.read()
            if mark != MARK:
                file.seek(max(0, file.tell() - LONGEST))
                if MARK in file.read():  # the end says a wrong place
                    raise damaged(path)
            elif of_footer != zlib.crc32(footer, of_data) or (
                data and of_data != _checksum(file, place)
            ):
                raise damaged(path)


def damaged(path: Path, why: str = "its bytes are not those that were written") -> TableError:
    """What there is to say of such a file."""
    return TableError(f"{path} is damaged: {why}; {way_out(path)}")


def _footer(file: BinaryIO, path: Path) -> int:
    """Where the footer starts. Raises TableError where there is none."""
    size = file.seek(0, 2)
    file.seek(max(0, size - END.size))
    found = file.read()
    length, magic = END.unpack(found) if len(found) == END.size else (0, b"")
    if (
        magic != PARQUET or not 0 < length <= size - END.size or size < SEAL.size + END.size
    ):  # none is that small
        raise damaged(path)
    return size - END.size - length


def _checksum(file: BinaryIO, end: int) -> int:
    """Of the bytes in front of `end`, where the file then stands."""
    file.seek(0)
    checksum = 0
    while left := end - file.tell():
        checksum = zlib.crc32(file.read(min(left, AT_ONCE)), checksum)
    return checksum
