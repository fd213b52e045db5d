"""Read what neurons promote through a tuned lens, one affine map per layer.

The logit lens reads a value vector as if later layers did nothing. A tuned lens (Belrose et al.
2023) first applies an affine map from the residual stream after the layer to the last one. Here the
map is the identity plus a ridge regression of the difference of the two streams at the last
position, on discovery prompts. (Belrose et al. minimise the divergence of predictions instead.)

Table tuned_logits: value logits of neurons through the tuned lens of their layer
    subject  VARCHAR   the model
    layer    SMALLINT  decoder layer, from 0
    neuron   INTEGER   neuron of the layer's MLP, from 0
    logits   FLOAT[]   logit of each number, from number 0, above its mean over numbers, for an
                       activation of 1; the final norm's scale is left out, as in value_logits

Table lens_fits: how well lenses predict the last residual stream
    subject       VARCHAR   the model
    layer         SMALLINT  decoder layer after which the lens reads, from 0
    fit_prompts   INTEGER   number of discovery prompts that the map is fitted on
    prompts       INTEGER   number of evaluation prompts that it is measured on
    logit_lens    DOUBLE    explained share of the last residual stream's variance over evaluation
                            prompts, at most 1, by the stream after the layer as it is; below 0 is
                            worse than the mean
    tuned_lens    DOUBLE    explained share by the affine map, at most 1
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import torch

from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint, value_logits
from stages.lib.model.architecture import watched_streams
from stages.lib.settings import Passes
from stages.lib.subject import Subject
from stages.neurons.rounding import in_steps
from stages.neurons.settings import TunedLens

LOGITS: dict[str, Any] = {
    "subject": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "logits": pl.List(pl.Float32),
}
FITS: dict[str, Any] = {
    "subject": pl.String,
    "layer": pl.Int16,
    "fit_prompts": pl.Int32,
    "prompts": pl.Int32,
    "logit_lens": pl.Float64,
    "tuned_lens": pl.Float64,
}


def main(name: str) -> None:
    """Fit one model's lenses, and write what its neurons promote through them."""
    subject, ridge = Subject.named(name), load(TunedLens).ridge
    pairs = subject.table("circuit/pairs.parquet")
    numbers = subject.table("store/numbers.parquet").sort("number")
    passes = subject.settings.passes or load(Passes)
    loaded = checkpoint.from_settings(subject.settings)
    streams = {}
    for split in ("discovery", "evaluation"):
        rows = pairs.filter(split=split).unique(["operator", "op1", "op2"], maintain_order=True)
        streams[split] = last_streams(loaded, rows, passes.prompts)
    answers = value_logits.directions(loaded, numbers["token"].to_list())
    layers = subject.settings.kept_layers(len(loaded.architecture.layers))
    frames, fits = [pl.DataFrame(schema=LOGITS)], [pl.DataFrame(schema=FITS)]
    for layer in layers:
        lens = fitted(streams["discovery"][layer + 1], streams["discovery"][-1], ridge)
        frames.append(_logits(loaded, name, layer, answers, lens[0]))
        fits.append(_fit(name, layer, streams, lens))
    write_table(pl.concat(frames), subject.path("neurons/tuned_logits.parquet"))
    write_table(pl.concat(fits), subject.path("neurons/lens_fits.parquet"))


@torch.no_grad()
def last_streams(loaded: checkpoint.Checkpoint, rows: pl.DataFrame, at_once: int) -> np.ndarray:
    """Return residual streams at the last position: (levels, prompts, width), float64.

    rows: of pairs, whose clean prompts are run. Level l enters layer l; the last one leaves the
    last layer.
    """
    a = loaded.architecture
    streams = np.empty((len(a.layers) + 1, len(rows), a.width))
    first = 0
    for tokens in _same_length(rows, at_once):
        part = slice(first, first + len(tokens))

        def look(level: int, stream: torch.Tensor, part: slice = part) -> None:
            streams[level, part] = stream[:, -1].double().cpu().numpy()

        ids = torch.from_numpy(tokens).to(loaded.model.device)
        with watched_streams(a, look):
            loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1)
        first += len(tokens)
    return streams


def _same_length(rows: pl.DataFrame, at_once: int) -> Iterator[np.ndarray]:
    """Yield the tokens of prompts of one length, at most `at_once` at a time."""
    lengths = rows.select("tokens", length=pl.col("tokens").list.len()).sort("length")
    for same in lengths.partition_by("length", maintain_order=True):
        for part in same.iter_slices(at_once):
            yield np.array(part["tokens"].to_list(), np.int64)


def fitted(before: np.ndarray, last: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Fit the affine map from a residual stream to the last one: (width, width) and (width,).

    before, last: (prompts, width). The penalty draws the map to the identity: the sum of squares
    of its difference, times `ridge` times the mean variance of a coordinate. Without prompts, the
    map is the identity.
    """
    width = before.shape[1]
    if not len(before):
        return np.eye(width), np.zeros(width)
    mean, target = before.mean(0), (last - before).mean(0)
    centred = before - mean
    covariance = centred.T @ centred / len(before)
    penalty = max(ridge * np.trace(covariance) / width, np.finfo(float).tiny)
    product = centred.T @ (last - before - target) / len(before)
    change = np.linalg.solve(covariance + penalty * np.eye(width), product)
    return np.eye(width) + change, target - mean @ change


def _logits(
    loaded: checkpoint.Checkpoint,
    name: str,
    layer: int,
    answers: torch.Tensor,
    lens: np.ndarray,
) -> pl.DataFrame:
    """Return one layer's rows of the table tuned_logits; lens: (width, width)."""
    through = answers @ torch.from_numpy(lens.T).to(answers.device)
    part = loaded.architecture.layers[layer]
    logits = value_logits.of_layer(part, through).astype(np.float64)
    logits = in_steps(logits - logits.mean(1, keepdims=True))
    columns = {"subject": [name] * len(logits), "layer": [layer] * len(logits)}
    columns |= {"neuron": range(len(logits)), "logits": logits}
    return pl.DataFrame(columns).cast(LOGITS)  # type: ignore[arg-type]


def _fit(
    name: str, layer: int, streams: dict[str, np.ndarray], lens: tuple[np.ndarray, np.ndarray]
) -> pl.DataFrame:
    """Return one row of the table lens_fits."""
    held_out = streams["evaluation"]
    before, last = held_out[layer + 1], held_out[-1]
    row = {
        "subject": name,
        "layer": layer,
        "fit_prompts": streams["discovery"].shape[1],
        "prompts": len(last),
        "logit_lens": explained(before, last),
        "tuned_lens": explained(before @ lens[0] + lens[1], last),
    }
    return pl.DataFrame([row], schema=FITS)


def explained(predicted: np.ndarray, last: np.ndarray) -> float | None:
    """Return the explained share of the variance over prompts, None without any."""
    if not len(last):
        return None
    variance = np.square(last - last.mean(0)).sum()
    if not variance:
        return None
    return round(1 - np.square(last - predicted).sum() / variance, 7)


if __name__ == "__main__":
    main(sys.argv[1])
