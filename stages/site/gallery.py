"""Draw the pictures of the gallery from the default model's tables.

`python -m stages.site.gallery [DATA]` writes docs/gallery/*.png. Git keeps the pictures, so that a
fresh clone can build the site. Without tables, they stay as they are.
"""

import sys
from pathlib import Path

from PIL import Image

from stages.lib.console import plot
from stages.lib.sql.database import Database, connect
from stages.site import pages

SUBJECT = "abacus"


def draw(database: Database, picture: pages.Picture) -> None:
    frame = plot.rows(database.sql(picture.query, subject=SUBJECT))
    figure = plot.KINDS[plot.kind_of(frame)](frame, plot.labels(picture.query, frame.columns))
    plot.save(figure, pages.ROOT / picture.drawn)
    shrink(pages.ROOT / picture.drawn)


def shrink(path: Path) -> None:
    """Reduce a picture to 256 colours, which takes a third of the space in Git."""
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256)
    reduced.save(path, optimize=True)


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else pages.ROOT / "data")
    if not (folder / SUBJECT / "theories" / "theories.parquet").exists():
        print(f"gallery: {folder} lacks tables of {SUBJECT}; its pictures stay as they are")
        return
    with connect(folder) as database:
        for picture in pages.gallery():
            draw(database, picture)


if __name__ == "__main__":
    main(sys.argv[1:])
