"""Keep the parts of a long stage's output while it runs, so that an interrupted stage continues.

They lie beside the output in <output>.parts/<key>/; the key is a digest of everything that they
depend on. All parts are removed once the output is written, those under other keys as well.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl
from pyarrow.parquet import ParquetWriter

from stages.lib.core.files import PARTS, replacing
from stages.lib.core.tables import TableError, check, read_table, seal, write_table
from stages.lib.units.pool import Refused


class Parts:
    """The parts of one output. key: a digest of all inputs (see digest)."""

    def __init__(self, output: Path, key: str):
        self.output, self.folder = output, output.with_suffix(PARTS) / key[:32]
        with suppress(FileExistsError):
            self.folder.mkdir(parents=True)
            self._report_others()

    def _report_others(self) -> None:
        """Say which finished parts are of no use here, as a wrong variable may be the reason."""
        for other in sorted(self.folder.parent.iterdir()):
            parts = len(list(other.glob("*.parquet")))
            if other != self.folder and parts:
                problem = f"{other} has {parts} finished parts"
                why = "of another input, setting or code, or of another device or BAG_PASSES"
                print(f"{problem} {why}; they stay until the output is written", file=sys.stderr)

    def admit(self, parity_digest: str) -> None:
        """Let this process write parts if it computes the same numbers as the first process.

        parity_digest: a digest of something small that it has computed. Raises Refused.
        """
        first = self.folder / "parity_digest"
        with replacing(self.folder / "parity_digest of another", shared=True) as partial:
            partial.write_text(parity_digest, encoding="utf-8")
            with suppress(FileExistsError):
                _appear(partial, first)
        if first.read_text(encoding="utf-8") != parity_digest:
            raise Refused(
                f"this machine computes other numbers than the one that started {self.output} "
                "(another processor or other libraries): continue there, "
                f"or remove {self.folder.parent} to start again here"
            )

    def missing(self, count: int) -> list[int]:
        """Return which of the parts 0..count-1 are still to be computed, damaged ones included."""
        return [number for number in range(count) if not self._is_whole(number)]

    def write(self, number: int, part: pl.DataFrame) -> None:
        write_table(part, self._path(number), shared=True)

    def beside(self, number: int, suffix: str) -> Path:
        """Return the path for a file of a part besides its table.

        Write it before the table, which marks the part as done.
        """
        return self._path(number).with_suffix(suffix)

    def read(self, number: int) -> pl.DataFrame:
        return read_table(self._path(number))

    def finish(
        self,
        groups: Iterable[Sequence[int]],
        empty: pl.DataFrame,
        together: Callable[..., pl.DataFrame] = pl.concat,
    ) -> None:
        """Join the parts in order, one group at a time in memory, and remove them.

        groups: the numbers of the parts; empty: a table without rows; together: makes one table
        from the list of a group's parts.
        """
        with replacing(self.output) as partial:
            with ParquetWriter(partial, empty.to_arrow().schema, compression="zstd") as writer:
                for group in groups:
                    writer.write_table(together([self.read(number) for number in group]).to_arrow())
            seal(partial)
        self.remove()

    def remove(self) -> None:
        """Remove all parts, once the output is written."""
        shutil.rmtree(self.folder.parent)

    def _is_whole(self, number: int) -> bool:
        try:
            check([self._path(number)])
        except TableError:
            return False
        return True

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"


def _appear(whole: Path, path: Path) -> None:
    """Make a file appear at `path`, whole at once. Raises FileExistsError if there is one."""
    try:
        os.link(whole, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, on which two processes may see half of the text
        with path.open("xb") as file:
            file.write(whole.read_bytes())
