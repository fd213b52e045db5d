"""The neurons that the page lets people look at: which, where they fire, what they vote for, and what tables say of them.

Neurons with a label come first, each label's strongest before its second strongest, then those of largest effect.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.shards import store_of
from stages.lib.sql.database import Database
from stages.report.page.contents import Contents, Fact
from stages.report.page.maps import Map, drawn
from stages.report.page.rows import ask, packed
from stages.report.settings import Report

CHOSEN = """
    with
        called as (
            select layer, neuron, list(heuristic order by place) as names from labels where operator = $operator group by all
        ),
        patched as (
            select layer, neuron, max(logit_effect) as effect from neuron_effects
            where operator = $operator and method = 'exact' group by all
        ),
        known as (
            from neuron_variances left join called using (layer, neuron) left join patched using (layer, neuron)
            select *, row_number() over (partition by names order by effect desc nulls last, rank) as namesake
            where operator = $operator and layer in $layers
        )
    select layer, neuron, coalesce(names, []) as names, effect
    from known
    order by names is null, if(names is null, null, namesake), effect desc nulls last, rank
    limit $count
"""


def browsed(
    contents: Contents, of: Database, subject: str, operators: Sequence[str], settings: Report
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What is known of the chosen neurons of each operator, and the bytes of their maps, one after another."""
    known, maps = {}, {}
    for operator in operators:
        known[operator], maps[operator] = _known(of, Path("data") / subject, operator, settings)
    facts = [_facts(fact, of, subject, known, settings.facts_per_neuron) for fact in contents.browser.facts]
    return {"operators": known, "facts": facts}, maps


def _known(of: Database, folder: Path, operator: str, settings: Report) -> tuple[dict[str, Any], bytes]:
    """An operator's neurons, of which the first have maps, and the sizes of these."""
    activations, votes = store_of(folder / "store/activations", operator), LayerStore(folder / "store/value_logits.h5")
    chosen = of.sql(CHOSEN, operator=operator, layers=activations.layers, count=settings.neurons_listed).pl()
    neurons = [_votes(row, votes, settings.votes) for row in chosen.iter_rows(named=True)]
    maps = [_map(row, activations, settings) for row in neurons[: settings.neurons_drawn]]
    for row, drawn_one in zip(neurons, maps, strict=False):
        row["map"] = {"scale": _short(drawn_one.scale), "limit": _short(drawn_one.limit), "corner": drawn_one.corner}
    sizes = {"whole": maps[0].whole.shape, "detail": maps[0].detail.shape, "block": maps[0].block} if maps else {}
    part = {"neurons": neurons, "operands": [activations.axes["op1"], activations.axes["op2"]], **sizes}
    return part, b"".join(one.whole.tobytes() + one.detail.tobytes() for one in maps)


def _votes(row: dict[str, Any], votes: LayerStore, count: int) -> dict[str, Any]:
    """The neuron with the numbers that its value vector votes for most, and by how much."""
    logits = widen(votes.read(row["layer"], slice(row["neuron"], row["neuron"] + 1), slice(None)))[0]
    first = np.argsort(-logits, kind="stable")[:count]
    return row | {"effect": _short(row["effect"]), "votes": [[int(number), _short(float(logits[number]))] for number in first]}


def _map(row: dict[str, Any], activations: LayerStore, settings: Report) -> Map:
    values = widen(activations.read(row["layer"], slice(row["neuron"], row["neuron"] + 1), slice(None)))[0]
    return drawn(values, activations.columns["result"] >= 0, settings.map_side, settings.detail_side)


def _facts(fact: Fact, of: Database, subject: str, known: dict[str, Any], limit: int) -> dict[str, Any] | None:
    """The rows of a table that are about these neurons or their labels, at most `limit` of each; None where it is not there."""
    if fact.by == "neuron":
        key = "concat_ws(':', operator, layer, neuron)"
        among = [f"{operator}:{row['layer']}:{row['neuron']}" for operator, part in known.items() for row in part["neurons"]]
    else:
        key = "concat_ws(':', operator, heuristic)"
        among = [f"{operator}:{name}" for operator, part in known.items() for row in part["neurons"] for name in row["names"]]
    answer = ask(fact, of, subject, limit, key, among)
    return answer and packed(answer[0])


def _short(value: float | None) -> float | None:
    return None if value is None or value - value != 0 else float(f"{value:.6g}")
