"""Draw a neuron's map, and ablate neurons, in a notebook or a script.

    from stages import ablate, neuron_map

    neuron_map("abacus", 2, 489, "add")
    ablate("abacus", ["226-68", "300+5"], [(2, 489), (2, 439)])

Both work on the project that the working directory is in. They read and compute as `bag explore`
does, and draw as the report's figures of labels are drawn.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from operator import index
from pathlib import Path

import numpy as np
import polars as pl

from stages.explorer.explorer import Explorer
from stages.explorer.jobs import Ablation
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import parse_prompt
from stages.explorer.views import silence
from stages.explorer.views.neuron import contributions, members
from stages.explorer.views.prompt import NUMBERS
from stages.lib.core.settings import read
from stages.lib.drawing import drawing, maps
from stages.lib.drawing.drawing import Figure
from stages.lib.sql.database import project_data

LABEL = """
    select heuristic from labels
    where subject = $subject and operator = $operator and layer = $layer and neuron = $neuron
        and rank = 1
"""
REPLACEMENTS = ("mean", "zero")
_explorers: dict[Path, Explorer] = {}  # by the root of the project; they keep loaded models


@dataclass(frozen=True, eq=False)
class MapPicture:
    """A figure that a notebook shows as PNG."""

    figure: Figure

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        drawing.FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})
        return png.getvalue()

    def save(self, path: Path | str) -> None:
        """Write path.png and path.svg."""
        drawing.save(self.figure, Path(path))


def neuron_map(
    subject: str,
    layer: int,
    neuron: int,
    operator: str = "add",
    heuristic: str | None = None,
) -> MapPicture:
    """Draw a neuron's activations over the operand grid, and its contributions to the answer.

    Each map is drawn as a whole and in detail, with the outline of a heuristic. The contribution is
    the activation times the direct logit attribution to the cell's answer. It is what heuristics of
    the result are scored on.

    heuristic: its name in the table `heuristics`; by default the neuron's first label, if any.

    Raises ExplorerError if the model, the neuron or the heuristic is unknown, or if the activations
    are missing. The message then names the stage that makes them.
    """
    keys = {"subject": subject, "operator": operator, "layer": layer, "neuron": neuron}
    with _opened() as explorer:
        project = explorer.project
        values, results = project.map(subject, operator, layer, neuron)
        parts = contributions(project, keys, values, results)
        name = heuristic or _label(project, keys)
        holds = np.zeros(values.shape, bool)
        if name:
            holds = members(project, subject, operator, name, values.shape)
        detail = read()["portraits"]["detail"]
    activations = np.where(results >= 0, values, np.nan)
    pair = [
        maps.Example("activation", activations, holds),
        maps.Example("contribution to the logit of the answer", parts, holds),
    ]
    title = f"{subject}, {operator}: layer {layer}, neuron {neuron}; outlined: {name or 'nothing'}"
    figure = maps.examples([pair], title, detail)
    drawing.plt.close(figure)  # matplotlib would keep it
    return MapPicture(figure)


def ablate(
    subject: str,
    prompts: Sequence[str],
    neurons: Iterable[Sequence[int]],
    replacement: str = "mean",
) -> pl.DataFrame:
    """Run a model on a few prompts with neurons ablated at the last position.

    prompts: such as 226-68; neurons: layer and neuron of each; replacement: mean (of each
    neuron's activations, pooled over operators) or zero.

    Returns a row for each prompt and run. The runs are the unchanged model, the neurons ablated,
    and five draws of as many random neurons of the same layers. The columns are prompt, ablated,
    prediction (null if it is not a number), correct, probability of the answer (0 to 1), and
    logit: the answer's, minus the mean over the vocabulary.

    Raises ExplorerError if the model has no such prompt or neuron, or cannot be run.
    """
    if replacement not in REPLACEMENTS:
        allowed = " or ".join(REPLACEMENTS)
        raise ExplorerError(f"replacement is {replacement!r}; it must be {allowed}")
    if isinstance(prompts, str) or not prompts:
        raise ExplorerError(f"prompts is {prompts!r}; it must be a list, such as ['226-68']")
    pairs = _pairs(neurons)
    frames = []
    with _opened() as explorer:
        project, live = explorer.project, explorer.models.wait(subject)
        numbers = project.ask(NUMBERS, subject=subject)
        for text in prompts:
            operator, op1, op2 = parse_prompt(text, project.symbols)
            prompt = live.cell(operator, op1, op2)
            ablation = Ablation(subject, operator, pairs, replacement)
            logits = silence.ablated(live, prompt, ablation)
            rows = silence.summary(logits, prompt["answer_token"].item(), numbers)
            frames.append(rows.select(pl.lit(text).alias("prompt"), pl.all()))
    return pl.concat(frames)


def _pairs(neurons: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return layers and neurons, which may be lists or rows of an array, as pairs of integers."""
    try:
        pairs = tuple((index(layer), index(neuron)) for layer, neuron in neurons)
    except (TypeError, ValueError):
        pairs = ()
    if not pairs:
        problem = "it must be a list of layers and neurons, such as [(2, 489)]"
        raise ExplorerError(f"neurons is {neurons!r}; {problem}")
    return pairs


@contextmanager
def _opened() -> Iterator[Explorer]:
    """Yield the explorer of the project that the working directory is in, in the project's root.

    Raises QueryError if it is in no project.
    """
    root = project_data(".").parent
    with chdir(root):
        if root not in _explorers:
            _explorers[root] = Explorer(Project())
        _explorers[root].refresh()
        yield _explorers[root]


def _label(project: Project, keys: dict) -> str | None:
    """Return the neuron's first label, None if it has none or if labels are missing."""
    if not project.has("labels", keys["subject"]):
        return None
    return next(iter(project.ask(LABEL, **keys)["heuristic"]), None)
