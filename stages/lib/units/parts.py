"""Parts of a long stage's output, kept while it runs, so that an interrupted stage goes on where it stopped.

They lie beside the output in <output>.parts/<key>/, the key being a digest of everything that they depend on; parts under another key are
removed, and all of them are once the output is written.
"""

import os
import shutil
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
        self.folder.mkdir(parents=True, exist_ok=True)
        for other in self.folder.parent.iterdir():
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def admit(self, canary: str) -> None:
        """Lets this process write parts, if it computes as the first one does that did.

        canary: a digest of something small that it has computed. Raises Refused.
        """
        first = self.folder / "canary"
        with replacing(self.folder / "canary of another", shared=True) as partial:
            partial.write_text(canary, encoding="utf-8")
            with suppress(FileExistsError):
                os.link(partial, first)  # whole at once, and by one process alone
        if first.read_text(encoding="utf-8") != canary:
            raise Refused(
                f"this processor, or what it computes with, gives other numbers than the one that began {self.output}: there the same "
                f"command goes on, and here it begins again without {self.folder.parent}"
            )

    def missing(self, count: int) -> list[int]:
        """Which of the parts 0..count-1 are still to be computed; among them any that is damaged."""
        return [number for number in range(count) if not self._is_whole(number)]

    def write(self, number: int, part: pl.DataFrame) -> None:
        write_table(part, self._path(number), shared=True)

    def beside(self, number: int, suffix: str) -> Path:
        """Where a file of a part may lie that is no table; to be written first: the table says that the part is there."""
        return self._path(number).with_suffix(suffix)

    def read(self, number: int) -> pl.DataFrame:
        return read_table(self._path(number))

    def finish(
        self,
        groups: Iterable[Sequence[int]],
        empty: pl.DataFrame,
        together: Callable[..., pl.DataFrame] = pl.concat,
    ) -> None:
        """Puts the parts together in their order, one group at a time in memory, and removes them.

        groups: the numbers of the parts; together: makes one table of a group's parts, a list; empty: a table without rows.
        """
        with replacing(self.output) as partial:
            with ParquetWriter(partial, empty.to_arrow().schema, compression="zstd") as writer:
                for group in groups:
                    writer.write_table(together([self.read(number) for number in group]).to_arrow())
            seal(partial)
        self.remove()

    def remove(self) -> None:
        """Removes all parts, once the output is there."""
        shutil.rmtree(self.folder.parent)

    def _is_whole(self, number: int) -> bool:
        try:
            check([self._path(number)])
        except TableError:
            return False
        return True

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"
