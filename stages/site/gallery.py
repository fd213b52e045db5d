"""Draw the pictures of the gallery from the tables of the model abacus.

`python -m stages.site.gallery [DATA]` writes docs/gallery/*.webp. Git keeps the pictures, so that a
fresh clone can build the site. If a table is missing, or has no rows of this model, the pictures
that need it stay as they are: `make quick`, for example, fetches no activations. Any other error in
a query stops the command.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from stages.lib.console import plot
from stages.lib.core.files import replacing
from stages.lib.sql.database import Database, QueryError, connect
from stages.site import pages

QUALITY = 82  # of WebP, 0 to 100
# How the message of a query begins that has nothing to draw.
NOTHING_TO_DRAW = ("There is no table ", "the query has no rows ")


def draw(database: Database, query: pages.GalleryQuery) -> None:
    """Draw a query's rows, as `bag plot` does, into the query's picture.

    Pictures are WebP files: a map of 90,000 cells takes a third of the bytes of a PNG file. Raises
    QueryError if the query cannot be drawn.
    """
    frame = plot.rows(database.sql(query.query, subject=pages.SUBJECT))
    figure = plot.KINDS[plot.kind_of(frame)](frame, plot.labels(query.query, frame.columns))
    with TemporaryDirectory() as folder:
        png = Path(folder) / "plot.png"
        plot.save(figure, png)
        with Image.open(png) as image, replacing(pages.ROOT / query.picture) as partial:
            image.convert("RGB").save(partial, format="WEBP", quality=QUALITY, method=6)


def main(arguments: list[str]) -> None:
    """Draw every picture of the gallery from a folder of tables, by default data/."""
    folder = Path(arguments[0] if arguments else pages.ROOT / "data")
    with connect(folder) as database:
        for query in pages.gallery():
            try:
                draw(database, query)
            except QueryError as error:
                reason, _, _ = str(error).partition(". ")
                if not reason.startswith(NOTHING_TO_DRAW):
                    raise
                print(f"gallery: {Path(query.picture).name} stays as it is: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
