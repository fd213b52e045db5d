"""Select the neurons of the neuron browser, and collect their maps and what tables have about them.

Neurons with a label come first: the strongest of each label, then the second strongest of each, and
so on. Then come those with the largest effect.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.shards import store_of
from stages.lib.sql.database import Database
from stages.report.page import maps
from stages.report.page.contents import Contents, Fact
from stages.report.page.maps import Map
from stages.report.page.rows import ask, packed, rounded
from stages.report.settings import Report

DIGITS = 6  # of an effect, a logit or a scale
SELECTED = """
    with
        called as (
            select layer, neuron, list(heuristic order by rank) as names from labels
            where operator = $operator group by all
        ),
        patched as (
            select layer, neuron, max(logit_effect) as effect from neuron_effects
            where operator = $operator and method = 'exact' group by all
        ),
        known as (
            from neuron_variances
            left join called using (layer, neuron)
            left join patched using (layer, neuron)
            select *,
                row_number() over (
                    partition by names order by effect desc nulls last, rank
                ) as namesake
            where operator = $operator and layer in $layers
        )
    select layer, neuron, coalesce(names, []) as names, effect
    from known
    order by names is null, if(names is null, null, namesake), effect desc nulls last, rank
    limit $count
"""


def browsed(
    contents: Contents,
    data: Database,
    subject: str,
    operators: Sequence[str],
    settings: Report,
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the selected neurons of each operator, and the bytes of their maps, in order."""
    known, cells = {}, {}
    for operator in operators:
        known[operator], cells[operator] = _known(data, Path("data") / subject, operator, settings)
    limit = settings.facts_per_neuron
    facts = [_facts(fact, data, subject, known, limit) for fact in contents.browser.facts]
    return {"operators": known, "facts": facts}, cells


def _known(
    data: Database,
    folder: Path,
    operator: str,
    settings: Report,
) -> tuple[dict[str, Any], bytes]:
    """Return the selected neurons of an operator, with the sizes of their maps, and the maps."""
    activations = store_of(folder / "store/activations", operator)
    value_logits = LayerStore(folder / "store/value_logits.h5")
    layers, count = activations.layers, settings.neurons_listed
    rows = data.sql(SELECTED, operator=operator, layers=layers, count=count).pl()
    neurons: list[dict] = []
    cells: list[bytes] = []
    operands = [activations.axes["op1"], activations.axes["op2"]]
    part: dict[str, Any] = {"neurons": neurons, "operands": operands}
    for row in rows.iter_rows(named=True):
        promoted = _promoted(row, value_logits, settings.promoted_numbers)
        neuron = row | {"effect": _short(row["effect"]), "promoted": promoted}
        if len(neurons) < settings.neurons_drawn:
            drawn = _map(row, activations, settings)
            colours = {"scale": _short(drawn.scale), "limit": _short(drawn.limit)}
            neuron["map"] = colours | {"corner": drawn.corner}
            cells.append(drawn.whole.tobytes() + drawn.detail.tobytes())
            part |= {"whole": drawn.whole.shape, "detail": drawn.detail.shape}
            part["block"] = drawn.block
        neurons.append(neuron)
    return part, b"".join(cells)


def _promoted(row: dict[str, Any], value_logits: LayerStore, count: int) -> list[list]:
    """Return the numbers that a neuron promotes most, each with its direct logit attribution."""
    logits = _of_neuron(value_logits, row)
    first = np.argsort(-logits, kind="stable")[:count]
    return [[int(number), _short(float(logits[number]))] for number in first]


def _map(row: dict[str, Any], activations: LayerStore, settings: Report) -> Map:
    valid = activations.columns["result"] >= 0
    values = _of_neuron(activations, row)
    return maps.drawn(values, valid, settings.map_side, settings.detail_side)


def _of_neuron(store: LayerStore, row: dict[str, Any]) -> np.ndarray:
    """Return the values of a neuron, of the store's other axes, in float32."""
    neuron = row["neuron"]
    return widen(store.read(row["layer"], slice(neuron, neuron + 1), slice(None)))[0]


def _neuron_keys(operator: str, row: dict[str, Any]) -> list[str]:
    return [f"{operator}:{row['layer']}:{row['neuron']}"]


def _label_keys(operator: str, row: dict[str, Any]) -> list[str]:
    return [f"{operator}:{name}" for name in row["names"]]


# what a fact is about -> SQL of its key, and the keys of a neuron
KEYS = {
    "neuron": ("concat_ws(':', operator, layer, neuron)", _neuron_keys),
    "heuristic": ("concat_ws(':', operator, heuristic)", _label_keys),
}


def _facts(
    fact: Fact,
    data: Database,
    subject: str,
    known: dict[str, Any],
    limit: int,
) -> dict[str, Any] | None:
    """Return the rows of a table about these neurons or their labels, at most `limit` of each.

    The result is None if the table is missing.
    """
    expression, keys_of = KEYS[fact.by]
    keys: list[str] = []
    for operator, part in known.items():
        for row in part["neurons"]:
            keys += keys_of(operator, row)
    answer = ask(fact, data, subject, limit, expression, keys)
    return answer and packed(answer[0])


def _short(value: float | None) -> float | None:
    return None if value is None else rounded(value, DIGITS, None)
