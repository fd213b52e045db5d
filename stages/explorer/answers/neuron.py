"""A neuron: where it fires, what it stands for, what it votes for, what it does to the answer, and which neurons are like it."""

import numpy as np
import polars as pl

from stages.explorer.project import ExplorerError, Project
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed
from stages.lib.heuristics.names import Heuristic, HeuristicError

KEYS = "subject = $subject and operator = $operator and layer = $layer and neuron = $neuron"
MAP = f"""
    select op1, op2, result, activation from activations
    where {KEYS}
    order by op1, op2
"""
VOTED = f"""
    with asked as (
        select op1, op2, number from prompts join numbers using (subject)
        where subject = $subject and operator = $operator and token = answer_token
    )
    select op1, op2, result, activation * logit as voted
    from activations join value_logits using (subject, layer, neuron) join asked using (op1, op2, number)
    where {KEYS}
    order by op1, op2
"""
MATCHES = f"""
    with named as (select heuristic, side, place as label from labels where {KEYS})
    select heuristic, side, score, share as chance, corrected, null_corrected, p_value, q_value, label
    from matches left join named using (heuristic, side)
    where {KEYS}
    order by corrected desc, heuristic, side
"""
SCORES = f"""
    select heuristic, side, score, share as chance, corrected from scores
    where {KEYS}
    order by corrected desc, heuristic, side
"""
VOTES = """
    select number, logit from value_logits
    where subject = $subject and layer = $layer and neuron = $neuron
    order by number
"""
EFFECTS = f"""
    select method, position, effect, ci_low, ci_high, logit_effect, prompts, rank from neuron_effects
    where {KEYS}
    order by method, position
"""
WAVES = f"""
    select place, frequency1, frequency2, period1, period2, share from spectra
    where {KEYS}
    order by place
"""
SIMILAR = """
    with
        of_all as (
            select layer, neuron, heuristic, side, corrected::double as corrected from scores
            where subject = $subject and operator = $operator and corrected > 0
        ),
        own as (select heuristic, side, corrected from of_all where layer = $layer and neuron = $neuron),
        sizes as (select layer, neuron, sqrt(sum(corrected * corrected)) as size from of_all group by all)
    select layer, neuron,
        sum(of_all.corrected * own.corrected) / any_value(size) / (select sqrt(sum(corrected * corrected)) from own) as similarity,
        count(*) as heuristics_in_common
    from of_all join own using (heuristic, side) join sizes using (layer, neuron)
    where (layer, neuron) <> ($layer, $neuron)
    group by layer, neuron
    order by similarity desc, layer, neuron
    limit 12
"""
MEMBERS = """
    select op1, op2 from (select *, nullif($asked[result + 1], -1) as asked from cells where operator = $operator)
    where ({predicate})::boolean
"""
CATALOGUE = "select operator, heuristic, kind, quantity, predicate from heuristics where operator = $operator and heuristic = $heuristic"
# quantities whose heuristics are scored on activation · value logit
OF_ANSWERS = ("result", "asked")
AXES = {"op1": (1, 0), "op2": (0, 1), "op1 + op2": (1, 1), "op1 - op2": (1, -1)}  # a cell's place on each: a * op1 + b * op2


def matches(project: Project, keys: dict) -> pl.DataFrame:
    """The neuron's heuristics, best first; of a subject that was never tested against chance the scores alone."""
    if project.has("matches", keys["subject"]) and project.has("labels", keys["subject"]):
        return project.ask(MATCHES, **keys)
    project.need(keys["subject"], "scores")
    return project.ask(SCORES, **keys)


def heuristic(project: Project, operator: str, name: str) -> Heuristic:
    """Return the heuristic of a name. Raises ExplorerError if no heuristic has it."""
    catalogue = project.ask(CATALOGUE, operator=operator, heuristic=name)
    try:
        [named] = listed(catalogue, operator, [name])
    except HeuristicError as error:
        raise ExplorerError(str(error)) from None
    return named


def members(
    project: Project,
    subject: str,
    operator: str,
    name: str,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return which cells of the operand grid satisfy a heuristic: bool (op1, op2)."""
    numbers = project.asked(subject)
    query = MEMBERS.format(predicate=heuristic(project, operator, name).predicate)
    cells = project.ask(query, operator=operator, asked=[] if numbers is None else numbers.tolist())
    holds, op1, op2 = np.zeros(shape, bool), cells["op1"].to_numpy(), cells["op2"].to_numpy()
    inside = (op1 < shape[0]) & (op2 < shape[1])
    holds[op1[inside], op2[inside]] = True
    return holds


def voted(project: Project, keys: dict, values: np.ndarray, results: np.ndarray) -> np.ndarray:
    """What the neuron adds to each cell's answer, activation · value logit: (op1, op2), NaN where a prompt has no answer."""
    store = project.votes(keys["subject"])
    logits = store.read(keys["layer"], slice(keys["neuron"], keys["neuron"] + 1), slice(None))[0]
    return np.where(results >= 0, values * logits[asked.voted(store, np.maximum(results, 0))], np.nan)


def profiles(values: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean activation along each of AXES: name -> places, means. values: (op1, op2)."""
    op1, op2 = np.indices(values.shape)
    found = {}
    for name, (a, b) in AXES.items():
        place = a * op1 + b * op2
        low = int(place.min())
        sums, counts = (np.bincount((place - low).ravel(), weights) for weights in (values.ravel().astype(np.float64), None))
        found[name] = np.arange(low, low + len(counts)), sums / counts
    return found
