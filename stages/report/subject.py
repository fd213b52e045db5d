"""Collects what the page shows of one subject: rows of its tables, its figures, and the neurons that can be looked at.

Reads the tables and figures that page/contents.yaml and every chapter's page.yaml name, the subject's labels.parquet,
neuron_effects.parquet and neuron_variances.parquet, and its stores activations/<operator>.h5 and value_logits.h5; writes
data/report/<subject>.json: `about` the subject, and `payloads`, which are deflated and in base64: tables, figures, neurons, and the
maps of each operator. A table or figure that is not there is left out, and the page says so. What compares subjects is not here.
"""

import json
import sys
from pathlib import Path

from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.lib.subject import load_subject
from stages.report.page.contents import contents
from stages.report.page.neurons import browsed
from stages.report.page.payloads import deflated, figures, tables
from stages.report.page.rows import database
from stages.report.settings import Report

NEEDED = ["labels", "neuron_effects", "neuron_variances"]  # by which neurons are chosen


def main(subject: str) -> None:
    page, settings, chosen = contents().only(study=False), load(Report), load_subject(subject)
    of = database([*page.tables(shared=False), *NEEDED], subject)
    known, maps = browsed(page, of, subject, chosen.operators, settings)
    payloads = {
        "tables": deflated(tables(page, of, subject, settings)),
        "figures": deflated(figures(page, settings, subject, chosen.operators)),
        "neurons": deflated(known),
        **{f"maps-{operator}": deflated(cells) for operator, cells in maps.items()},
    }
    about = {"subject": subject, "source": chosen.source, "revision": chosen.revision, "operators": chosen.operators}
    with replacing(Path("data/report") / f"{subject}.json") as partial:
        text = json.dumps({"about": about, "payloads": payloads}, indent=1)
        partial.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
