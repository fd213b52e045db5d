"""Draws a subject's neurons: per operator, the activation maps of the neurons that vary most.

Reads data/<subject>/neuron_variances.parquet and the activation store, through SQL; writes reports/<subject>/figures/.
"""

import sys
from pathlib import Path

import numpy as np

from stages.lib import drawing
from stages.lib.params.figures import Figures
from stages.lib.params.sections import load
from stages.lib.params.subjects import load_subject
from stages.lib.sql import Database, subject_files


def main(subject: str) -> None:
    database = Database(subject_files(subject, ["neuron_variances", "activations"]))
    count = load(Figures).neurons_per_operator
    for operator in load_subject(subject).operators:
        cells = database.sql(
            """
            select rank, layer, neuron, op1, op2, activation
            from activations join neuron_variances using (subject, operator, layer, neuron)
            where operator = $operator and rank <= $count and result is not null
            """,
            operator=operator,
            count=count,
        ).pl()
        side = (int(cells["op1"].max()) + 1, int(cells["op2"].max()) + 1)
        panels = []
        for (_, layer, neuron), part in cells.sort("rank").group_by("rank", "layer", "neuron", maintain_order=True):
            grid = np.full(side, np.nan, np.float32)
            grid[part["op1"], part["op2"]] = part["activation"]
            panels.append((f"layer {layer}, neuron {neuron}", grid))
        figure = drawing.maps(panels, f"{subject}, {operator}: activations of the {len(panels)} neurons that vary most")
        drawing.save(figure, Path("reports") / subject / "figures" / f"neurons_{operator}")


if __name__ == "__main__":
    main(sys.argv[1])
