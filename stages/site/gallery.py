"""Draw the pictures of the gallery from the default model's tables.

`python -m stages.site.gallery [DATA]` writes docs/gallery/*.webp. Git keeps the pictures, so that a
fresh clone can build the site. A picture stays as it is if a table that its query reads is missing,
such as the activations, which `make quick` does not fetch.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from stages.lib.console import plot
from stages.lib.core.files import replacing
from stages.lib.sql.database import Database, QueryError, connect
from stages.site import pages

SUBJECT = "abacus"
QUALITY = 82  # of WebP, 0 to 100


def draw(database: Database, picture: pages.GalleryQuery) -> None:
    """Draw a query's rows, as `bag plot` does, into a WebP file. A map of 90,000 cells is a third
    as large as in PNG."""
    frame = plot.rows(database.sql(picture.query, subject=SUBJECT))
    figure = plot.KINDS[plot.kind_of(frame)](frame, plot.labels(picture.query, frame.columns))
    with TemporaryDirectory() as folder:
        drawn = Path(folder) / "plot.png"
        plot.save(figure, drawn)
        with Image.open(drawn) as image, replacing(pages.ROOT / picture.drawn) as partial:
            image.convert("RGB").save(partial, format="WEBP", quality=QUALITY, method=6)


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else pages.ROOT / "data")
    with connect(folder) as database:
        for picture in pages.gallery():
            try:
                draw(database, picture)
            except QueryError as error:
                reason, _, _ = str(error).partition(". ")
                print(f"gallery: {Path(picture.drawn).name} stays as it is: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
