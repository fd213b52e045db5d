"""Write the values to which steering sets neurons: means over cells with the target digit or carry.

bag/steering_given.h5 has an array (pairs, neurons) for each place, draw and layer. A pair's row has
the means of its own operator and target digit, as in steering_targets. Pairs without a target keep
0; `steering` leaves them out.
"""

import sys
from collections.abc import Iterator

import numpy as np
import polars as pl

from stages.lib.executor import external_values
from stages.lib.subject import Subject


def main(name: str) -> None:
    """Write one model's values."""
    subject = Subject.named(name)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    targets = subject.table("bag/steering_targets.parquet")
    means = subject.table("bag/digit_means.parquet")
    operators = pairs.select("pair", "operator", row=pl.int_range(pl.len()))
    arrays = values(targets.join(operators, on="pair"), means, len(pairs))
    path = subject.path("bag/steering_given.h5")
    external_values.write_each(path, pairs["pair"].to_numpy(), arrays)


def values(
    targets: pl.DataFrame, means: pl.DataFrame, pairs: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays with their names.

    targets: of steering_targets, with each pair's operator and row; means: the table digit_means.
    """
    draws = targets.select("place", "draw").unique().sort("place", "draw")
    for layer in means["layer"].unique().sort():
        own = means.filter(layer=layer)
        for place, draw in draws.rows():
            steered = targets.filter(place=place, draw=draw)
            joined = steered.join(
                own,
                left_on=["operator", "place", "target"],
                right_on=["operator", "place", "digit"],
            )
            array = np.zeros((pairs, len(own["means"][0])))
            if len(joined):
                array[joined["row"].to_numpy()] = np.array(joined["means"].to_list())
            yield f"{place} {draw} layer {layer}", array


if __name__ == "__main__":
    main(sys.argv[1])
