"""Read from the chapters' dvc.yaml which stages a model has, a user's own among them."""

from pathlib import Path
from typing import Any, Literal

import yaml

# Section of a model's entry in params.yaml -> the sections that then have the model. dvc.yaml
# repeats a stage for each model of one of these.
REPEATED_OVER = {
    "subjects": {
        "subjects", "known", "with_activations", "with_figures", "with_pairs", "with_mediation",
    },
    "stored": {"stored", "known", "with_activations", "with_figures"},
}  # fmt: skip
EXECUTOR = "stages.lib.executor.runs"
Kind = Literal["runs", "figures", "query"]  # a query, or another program that reads tables


def declared(section: str) -> dict[str, Kind]:
    """Return the stages of a model: <chapter>/<stage> -> its kind, as its command and outputs say.

    section: of the model's entry in params.yaml.
    """
    kinds = {}
    for file in sorted(Path("stages").glob("*/dvc.yaml")):
        stages = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["stages"]
        for name, entry in stages.items():
            if str(entry.get("foreach")).strip("${}") in REPEATED_OVER[section]:
                kinds[f"{file.parent.name}/{name}"] = _kind(entry["do"])
    return kinds


def _kind(entry: dict[str, Any]) -> Kind:
    if EXECUTOR in entry["cmd"].split():
        return "runs"
    for output in (*entry.get("outs", ()), *entry.get("plots", ())):
        path = output if isinstance(output, str) else next(iter(output))
        if path.startswith("reports/"):
            return "figures"
    return "query"
