"""Trains the default subject on the grid and on every task, and keeps checkpoints along the way.

Reads data/cells.parquet and data/facts.parquet; writes data/models/abacus/step-NNNNN/ (one loadable model each, in
bfloat16) and training_log.csv: step, loss, learning_rate, and accuracy on a fixed sample of cells per operator and split.
Interrupted, it continues from data/models/abacus.partial/, which it removes when done.
"""

import hashlib
import inspect
import shutil
import time
from pathlib import Path

import numpy as np
import polars as pl
from tqdm import tqdm

from stages.lib import corpus
from stages.lib.model import padding, tokenizer, training
from stages.lib.params.corpus import Cells, Tasks
from stages.lib.params.sections import load
from stages.lib.params.training import CellWeights, Train

FOLDER = Path("data/models/abacus")
PARTIAL = Path("data/models/abacus.partial")
STATE = PARTIAL / "state.safetensors"
SECONDS_BETWEEN_STATES = 45  # an interruption loses no more than this


class Examples:
    """The training examples of each step, and the cells on which accuracy is measured."""

    def __init__(self, settings: Train, tasks: Tasks, largest_answer: int, cells: pl.DataFrame, facts: pl.DataFrame):
        self.settings = settings
        weights = _weights(cells, settings.cell_weights)
        self.corpus = corpus.Corpus(tasks, cells, facts, weights, split="train")
        self.tokenizer = tokenizer.build(largest_answer, self.corpus.texts())
        self.vocabulary = self.tokenizer.get_vocab()
        symbols = {name: words.symbol for name, words in tasks.operators.items()}
        prompts = cells.select(
            pl.format("{}{}{}=", "op1", pl.col("operator").replace_strict(symbols), "op2").alias("prompt"),
            pl.col("result").cast(pl.String),
        )
        self.grid = np.array(self.tokenizer(prompts["prompt"].to_list())["input_ids"])  # (cells, 5)
        self.grid_answers = np.array(self.tokenizer.convert_tokens_to_ids(prompts["result"].to_list()))
        trained = (cells["split"] == "train").to_numpy()
        self.cumulative = np.cumsum(weights * trained)
        rng = np.random.default_rng(self.settings.seed)
        self.evaluation = {
            f"{operator} {split}": self._grid_batch(_sample(rng, cells, operator, split, self.settings.evaluation_cells))
            for operator in tasks.operators
            for split in ("train", "held-out")
        }

    def of_step(self, step: int) -> training.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        counts = self.settings.batch.model_dump()
        drawn = np.searchsorted(self.cumulative, rng.uniform(0, self.cumulative[-1], counts.pop("grid")), side="right")
        prompts = [p for task, count in counts.items() for p in self.corpus.draw(task, count, rng)]
        sequences = self.tokenizer([p.prompt for p in prompts])["input_ids"]
        answers = [self.vocabulary[p.answer] for p in prompts]
        return self._grid_batch(drawn) + training.bucket(sequences, answers)

    def _grid_batch(self, rows: np.ndarray) -> training.Batch:
        return [(self.grid[rows], np.full(len(rows), self.grid.shape[1]), self.grid_answers[rows])]


def _weights(cells: pl.DataFrame, weights: CellWeights) -> np.ndarray:
    by_operator = weights.model_dump()
    zero = by_operator.pop("divide_to_zero")
    into_zero = (pl.col("operator") == "divide") & (pl.col("result") == 0)
    weight = pl.when(into_zero).then(zero).otherwise(pl.col("operator").replace_strict(by_operator, return_dtype=pl.Float64))
    return cells.select(weight).to_series().to_numpy()


def _sample(rng: np.random.Generator, cells: pl.DataFrame, operator: str, split: str, count: int) -> np.ndarray:
    rows = np.flatnonzero(((cells["operator"] == operator) & (cells["split"] == split)).to_numpy())
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def _fingerprint(*settings: Cells | Tasks | Train) -> str:
    """Identifies all that the trained weights depend on, so that a state of other settings, data or code is never used."""
    sections = [section.model_dump_json() for section in settings]
    data = [Path(f"data/{name}.parquet").read_bytes().hex() for name in ("cells", "facts")]
    code = [inspect.getsource(module) for module in (training, padding, corpus, tokenizer)] + [Path(__file__).read_text()]
    return hashlib.sha256("\0".join(sections + data + code).encode()).hexdigest()


def _measure(run: training.Run, examples: Examples, loss: float) -> None:
    row = {"step": run.step, "loss": loss, "learning_rate": run.learning_rate()}
    training.evaluate(run, examples.evaluation, row.__setitem__)
    run.log.append(row)


def _train(run: training.Run, examples: Examples, fingerprint: str) -> None:
    settings = run.settings
    saved, loss = time.monotonic(), float("nan")
    with tqdm(total=settings.steps, initial=run.step, desc="train", unit="step") as bar:
        while True:
            due = run.step % settings.evaluate_every == 0 or run.step == settings.steps
            if due and (not run.log or run.log[-1]["step"] != run.step):
                _measure(run, examples, loss)
            if run.step in settings.checkpoints:
                run.save_checkpoint(PARTIAL / f"step-{run.step:05d}", examples.tokenizer)
            if run.step == settings.steps:
                return
            loss = run.advance(examples.of_step(run.step))
            accuracy = " ".join(f"{name[:3]} {run.log[-1][f'{name} held-out']:.2f}" for name in ("add", "subtract", "multiply", "divide"))
            bar.set_postfix_str(f"loss {loss:.3f}, held-out {accuracy}", refresh=False)
            bar.update()
            if time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                run.save_state(STATE, fingerprint)
                saved = time.monotonic()


def main() -> None:
    settings, tasks, grid = load(Train), load(Tasks), load(Cells)
    cells, facts = pl.read_parquet("data/cells.parquet"), pl.read_parquet("data/facts.parquet")
    examples = Examples(settings, tasks, grid.largest_answer, cells, facts)
    run = training.Run.start(settings, examples.tokenizer)
    fingerprint = _fingerprint(settings, tasks, grid)
    if not (STATE.exists() and run.load_state(STATE, fingerprint)):
        shutil.rmtree(PARTIAL, ignore_errors=True)
        PARTIAL.mkdir(parents=True)
    try:
        _train(run, examples, fingerprint)
    except KeyboardInterrupt:
        run.save_state(STATE, fingerprint)
        raise SystemExit(f"interrupted at step {run.step}; the same command continues from there") from None
    pl.DataFrame(run.log).write_csv(PARTIAL / "training_log.csv")
    STATE.unlink(missing_ok=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    PARTIAL.rename(FOLDER)


if __name__ == "__main__":
    main()
