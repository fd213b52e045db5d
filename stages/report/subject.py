"""Collect what the page shows of one model: rows of its tables, its figures, and its neurons.

Reads the tables and figures that page/contents.yaml and every chapter's page.yaml list, the model's
labels.parquet, neuron_effects.parquet and neuron_variances.parquet, and its stores
activations/<operator>.h5 and value_logits.h5.

Writes data/report/<subject>.json: `about` the model, and `payloads`, deflated and in base64:
findings (stages/report/findings.py), tables, figures, neurons, and the maps of each operator. The
page says which tables and figures are missing. What compares models is not part of it.
"""

import json
import sys
from pathlib import Path

from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.lib.subject import load_subject
from stages.report import findings
from stages.report.page.contents import contents
from stages.report.page.neurons import browsed
from stages.report.page.payloads import deflated, figures, tables
from stages.report.page.rows import database
from stages.report.settings import Report

# to select neurons, and for findings
NEEDED = ["label_limits", "labels", "neuron_effects", "neuron_variances"]


def main(subject: str) -> None:
    """Write the data of a model."""
    page, settings, model = contents().only(study=False), load(Report), load_subject(subject)
    data = database([*page.tables(shared=False), *NEEDED], subject)
    neurons, maps = browsed(page, data, subject, model.operators, settings)
    first = findings.collected(data, subject, model.operators)
    payloads = {
        "findings": deflated(first),
        "tables": deflated(tables(page, data, subject, settings)),
        "figures": deflated(figures(page, settings, subject, model.operators)),
        "neurons": deflated(neurons),
    }
    for operator, cells in maps.items():
        payloads[f"maps-{operator}"] = deflated(cells)
    about = {
        "subject": subject,
        "source": model.source,
        "revision": model.revision,
        "operators": model.operators,
        "tested": first["tested"],
    }
    with replacing(Path("data/report") / f"{subject}.json") as partial:
        text = json.dumps({"about": about, "payloads": payloads}, indent=1)
        partial.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
