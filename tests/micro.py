"""Micro settings: the whole pipeline on operands 0..19 and a model of a few thousand parameters.

`python -m tests.micro FOLDER` copies the project to a folder, as a Git repository with micro
settings.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.lib.core.files import replacing
from stages.lib.core.settings import files

ROOT = Path(__file__).parents[1]
# File of settings -> its sections.
FILES = {file.relative_to(ROOT): yaml.safe_load(file.read_text()) for file in files(ROOT)}
SHIPPED = {section: values for sections in FILES.values() for section, values in sections.items()}
TEMPLATES = SHIPPED["tasks"]
HALFWAY = "abacus-step-00100"
TUNED = "abacus-three-operands"
LATER = dict.fromkeys(
    ["abacus-deep", *(f"abacus-digits-{digit}" for digit in ("first", "second", "third"))]
)
NO_POINTS = dict.fromkeys(f"abacus-step-{step:05}" for step in (250, 500, 1000, 1500, 2000, 3500))
SETTINGS: dict[str, Any] = {
    "cells": {"largest_operand": 19, "largest_answer": 99},
    "facts": {"countries": 4, "people": 5, "things": 4, "languages": 3, "kinds": 2},
    "tasks": {
        "arithmetic": [TEMPLATES["arithmetic"][0], TEMPLATES["arithmetic"][-1]],
        "retrieval": TEMPLATES["retrieval"][:1],
        "largest_word_number": 19,
        "largest_operand_of_three": 5,
        "evaluation_prompts": 60,
    },
    "real_tasks": {"evaluation_prompts": 60},
    "train": {
        "abacus": {
            "model": {"layers": 2, "width": 32, "neurons": 64, "heads": 2, "positions": 64},
            "steps": 200,
            "checkpoints": [0, 100, 200],
            "batch": {
                "grid": 96,
                "arithmetic": 8,
                "number_words": 8,
                "three_operands": 4,
                "retrieval": 4,
                "factual": 4,
            },
            "warmup_steps": 20,
            "evaluate_every": 100,
            "evaluation_cells": 40,
            "precision": "float32",
            "threads": 1,
        },
        "abacus-deep": None,
        "abacus-digits": None,
    },
    "finetune": {
        TUNED: {
            "source": "data/models/abacus/step-00200",
            "batch": 16,
            "steps": 12,
            "warmup_steps": 2,
            "evaluate_every": 6,
            "evaluation_prompts": 40,
            "precision": "float32",
            "threads": 1,
        }
    },
    "subjects": {
        "abacus": {"source": "data/models/abacus/step-00200", "revision": "step 200"},
        "abacus-step-00000": None,
        **LATER,
    },
    "sizes": {
        **LATER,
        **NO_POINTS,
        "planted": {"single_heads": False},
        HALFWAY: {"single_heads": False},
    },
    "digits": {"abacus-digits": None},
    "checkpoints": {
        **NO_POINTS,
        HALFWAY: SHIPPED["subjects"]["abacus"]
        | {"source": "data/models/abacus/step-00100", "revision": "step 100"},
    },
    "trajectory": {
        "abacus-step-00000": None,
        **NO_POINTS,
        HALFWAY: {"source": "data/models/abacus/step-00100", "step": 100, "last": "abacus"},
        "abacus": {"source": "data/models/abacus/step-00200", "step": 200},
    },
    "passes": {"prompts_per_pass": 100},
    "dump": {"cells_per_block": 140, "neurons_per_chunk": 8},
    "runs": {"rows_per_pass": 600, "memory_mib": 128},
    "probes": {"prompts": 300, "fewest_prompts": 20},
    "pairs": {"pairs_per_split": 10, "seeds": [0, 1]},
    "bootstrap": {"replicates": 50},
    "head_circuits": {"head_counts": [0, 1, 2], "random_head_circuits": 2},
    "neuron_effects": {"neuron_replicates": 20},
    "attribution_agreement": {"ks": [5, 20]},
    "neuron_circuits": {"neurons_per_layer": [0, 8, 32], "random_circuits": 1},
    "operator_overlaps": {"operator_ks": [10]},
    "causal_votes": {"vote_prompts": 4},
    "planted": {
        "neurons": {"exact": 12, "partial": 6, "soft": 6, "mixture": 6, "noise": 20},
        "noise_functions": 4,
    },
    "scores": {"neurons_per_unit": 24, "least_cells": 1},
    "permutation_tests": {"least_draws": 100, "most_draws": 200, "neurons_per_unit": 24},
    "labels": {"level": 1.0},  # 20 operands are too few to tell heuristics from chance
    "knockouts": {
        "fewest_neurons": 1,
        "most_heuristics": 8,
        "control_draws": 2,
        "knockout_replicates": 20,
        "test_draws": 100,
    },
    "prompt_knockouts": {"neurons_per_layer": [2, 8]},
    "steering": {"steered_neurons": [2, 8], "steering_draws": 1},
    "faults": {"prompts": 4},
    "mediation": {
        "pairs_per_template": {
            "arithmetic": 2,
            "number_words": 2,
            "three_operands": 1,
            "retrieval": 2,
            "factual": 2,
        }
    },
    "mediation_effects": {"mediation_replicates": 20},
    "unit_mediation": {"mediated_pairs": 4},
    "neuron_overlap": {"overlap_ks": [2, 8, 400]},
    "report": {
        "rows": 100,
        "rows_per_page": 10,
        "figure_width": 500,
        "figure_quality": 80,
        "neurons_listed": 60,
        "neurons_drawn": 20,
        "facts_per_neuron": 12,
        "promoted_numbers": 10,
        "map_side": 100,
        "detail_side": 60,
        "largest_mib": 24.0,
    },
    "spectra": {"components": 4, "neurons_at_once": 24},
    "portraits": {"detail": 10},
    "helix": {"prompts": 120, "shuffles": 2},
    "theory_fits": {
        "budgets": [2, 16],
        "train_cells": 150,
        "held_out_cells": 40,
        "waves": 20,
        "neurons_at_once": 24,
        "fit_replicates": 20,
    },
    "figures": {"neurons_per_operator": 2},
}


def alone(name: str, **settings: Any) -> dict[str, Any]:
    """Return the section `subjects` with one model: the shipped one, with these settings."""
    return {"subjects": {name: SHIPPED["subjects"]["abacus"] | settings}}


def merged(base: dict, changes: dict) -> dict:
    """Return `base` with the values of `changes`, key by key; None removes a key."""
    whole = dict(base)
    for key, value in changes.items():
        are_sections = isinstance(value, dict) and isinstance(base.get(key), dict)
        whole[key] = merged(base[key], value) if are_sections else value
    return {key: value for key, value in whole.items() if value is not None}


def changed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the shipped settings with these changes, and the sections that follow from them."""
    whole = merged(SHIPPED, settings)
    subjects, stored = whole["subjects"], whole["stored"]
    dumped = subjects | whole["checkpoints"]
    known = dumped | whole["finetuned"] | stored
    return whole | {
        "known": known,
        "with_activations": dumped | stored,
        "with_figures": subjects | stored,
        "with_pairs": dumped,
        "with_mediation": dumped | whole["finetuned"],
        "sized": known | whole["sizes"],
    }


def begin_project(folder: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder the current project: with this project's stages, and all settings in a file."""
    (folder / "params.yaml").write_text(yaml.safe_dump(whole))
    (folder / "stages").symlink_to(ROOT / "stages")
    monkeypatch.setattr(
        "stages.lib.core.settings.files",
        lambda root=Path(): [root / "params.yaml"],
    )
    monkeypatch.chdir(folder)


def write_settings(folder: Path, whole: dict[str, Any]) -> None:
    """Write each section into its file, and unknown sections into params.yaml."""
    unknown = dict(whole)
    written = {}
    for file, sections in FILES.items():
        names = [section for section in sections if section in whole]
        written[file] = {section: unknown.pop(section) for section in names}
    written[Path("params.yaml")] |= unknown
    for file, sections in written.items():
        (folder / file).write_text(yaml.safe_dump(sections, sort_keys=False))


def copy_compiled(source: Path, folder: Path) -> None:
    """Copy what Python and numba have compiled, which takes them 20 seconds and more.

    It is valid for files with the same times, which shutil.copy2 keeps.
    """
    for cache in source.glob("stages/**/__pycache__"):
        for file in [*cache.glob("*.pyc"), *cache.glob("*.nb?")]:
            copied = folder / file.relative_to(source)
            if not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                with replacing(copied) as partial_file:
                    shutil.copy2(file, partial_file)


def copy_project(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    """Copy the project's files into a new Git repository with micro settings, without outputs."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        is_output = name.startswith(("data/", "reports/")) or name.endswith("dvc.lock")
        if (ROOT / name).is_file() and not is_output:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    copy_compiled(ROOT, folder)
    write_settings(folder, changed(SETTINGS if settings is None else settings))
    author = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "micro"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


if __name__ == "__main__":
    copy_project(Path(sys.argv[1]))
