"""Find out which shortcuts hold for a model, and remember them: they depend on the model alone."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from stages.lib import model
from stages.lib.core.digest import digest
from stages.lib.core.files import replacing
from stages.lib.executor.clean import narrows, record_calls, restarted
from stages.lib.executor.prefix import shares_prefix
from stages.lib.executor.rank_one import adds_value_vectors
from stages.lib.model.checkpoint import Checkpoint, fingerprint

KEPT = Path(".cache/shortcuts")


@dataclass(frozen=True)
class Shortcuts:
    """Which work a model allows the executor to leave out.

    restarts: layers can be restarted in the middle of prompts, without which no other shortcut
    holds; additive: per layer, whether it adds activation x value vector to the residual stream
    unchanged; attends: `prefix.attend` computes the model's attention; narrows: the last layer
    needs its MLP at the last position only.
    """

    restarts: bool
    additive: tuple[bool, ...] = ()
    attends: bool = False
    narrows: bool = False


def find(checkpoint: Checkpoint) -> Shortcuts:
    """Try each shortcut on a run of two prompts of four tokens."""
    tokens = (np.arange(8).reshape(2, 4) + 1) % checkpoint.architecture.vocabulary
    clean = restarted(checkpoint, tokens)
    if clean is None:
        return Shortcuts(restarts=False)
    calls = record_calls(checkpoint, tokens[0], 0)
    additive = (
        adds_value_vectors(checkpoint, layer, calls, entering[:1])
        for layer, entering in enumerate(clean.streams[:-1])
    )
    return Shortcuts(
        restarts=True,
        additive=tuple(additive),
        attends=shares_prefix(checkpoint, clean),
        narrows=narrows(checkpoint, clean, calls),
    )


def kept(checkpoint: Checkpoint, folder: str | Path) -> Path:
    """Return the file that holds the shortcuts of a model, once it has passed the parity check.

    Its name is a digest of what they depend on: weights, configuration, the code that runs and
    checks the model, dtype, devices. folder: of the weights.
    """
    own = checkpoint.model
    code = Path(__file__).parent, model, Path(folder) / "config.json"
    devices = str(own.device), str(getattr(own, "hf_device_map", None))
    versions = torch.__version__, transformers.__version__
    weights = fingerprint(folder)["weights_sha256"]
    return KEPT / f"{digest(code, weights, str(own.dtype), devices, versions)}.json"


def read(file: Path) -> Shortcuts | None:
    """Return the shortcuts of a file, None if it is absent or of other shortcuts."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return Shortcuts(**{**known, "additive": tuple(known["additive"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(shortcuts: Shortcuts, file: Path) -> None:
    """Write shortcuts for later processes."""
    # a project that is read-only keeps nothing
    with suppress(OSError), replacing(file, shared=True) as partial:
        partial.write_text(json.dumps(vars(shortcuts)), encoding="utf-8")
