"""Write circuits as MIB's circuit track reads them, and compute its two scores, CPR and CMD.

MIB (Mueller et al. 2025, arXiv:2504.13151) stores a circuit as the JSON of EAP-IG's graph. Its
nodes are the embedding, attention heads and MLPs. Its edges lead from a node's output to a later
node's input, for a head to each of its queries, keys and values.

A circuit of heads of this project is a circuit of nodes: it names heads, keeps all MLPs, and scores
no edge. So an edge is in the graph if both its nodes are, and its score is 0. MLPs and the
embedding have no score, so MIB keeps them in every circuit. Circuits of neurons have no such
form: MIB's neurons are coordinates of a node's output, not neurons of an MLP.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from stages.lib.core.files import replacing
from stages.lib.sql.database import Database
from stages.lib.sql.missing import ways_to

AREAS = Path(__file__).with_name("queries") / "areas.sql"
RANKINGS = ("effect", "logit_effect")
SIZES = "select layers, heads, width from architecture where subject = $subject"
EFFECTS = """
    select layer, head, effect, logit_effect from head_effects()
    where subject = $subject and operator = $operator
    order by layer, head
"""
CIRCUIT = """
    select layer, head from circuit_heads where subject = $subject and operator = $operator
"""
METHOD = "activation patching with counterfactuals, the largest mean effect over positions"


class CircuitError(ValueError):
    """A circuit that the tables do not have, or that MIB's graph cannot hold."""


def areas(bag: Database, subject: str) -> pl.DataFrame:
    """Return CPR and CMD of every ranking of heads and neurons of a model.

    The columns are described in queries/areas.sql, which `bag` runs as well.
    """
    return bag.sql(AREAS.read_text(encoding="utf-8"), subject=subject).pl()


def circuit_graph(
    bag: Database,
    subject: str,
    operator: str,
    heads: int | None = None,
    ranking: str = "logit_effect",
    parallel: bool = False,
) -> dict[str, Any]:
    """Return a circuit of heads as EAP-IG's graph: `cfg`, `nodes` and `edges`.

    heads: in the circuit, those with the largest scores; by default those of the table
    circuit_heads. ranking: the score of a head, `effect` or `logit_effect`. parallel: whether a
    layer's MLP reads the same residual stream as its heads, as in GPT-J and Pythia.

    Raises CircuitError if the tables lack the model, the operator or its circuit, if there are
    fewer heads, or if a head has no finite effect.
    """
    if ranking not in RANKINGS:
        raise CircuitError(f"unknown ranking {ranking!r}; rankings: {', '.join(RANKINGS)}")
    keys = {"subject": subject, "operator": operator}
    scores = _scores(bag, keys, ranking)
    sizes = bag.sql(SIZES, subject=subject).pl().row(0, named=True)
    kept = _kept(bag, keys, heads, scores)
    layers = range(sizes["layers"])
    names = [[f"a{layer}.h{head}" for head in range(sizes["heads"])] for layer in layers]
    nodes: dict[str, dict[str, Any]] = {"input": {"in_graph": True}}
    for layer in layers:
        for head, name in enumerate(names[layer]):
            nodes[name] = {"in_graph": (layer, head) in kept, "score": scores[layer, head]}
        nodes[f"m{layer}"] = {"in_graph": True}
    nodes["logits"] = {"in_graph": True}
    edges = {}
    for source, target, label in _edges(names, parallel):
        in_graph = nodes[source]["in_graph"] and nodes[target]["in_graph"]
        edges[f"{source}->{target}{label}"] = {"score": 0.0, "in_graph": in_graph}
    config = {
        "n_layers": sizes["layers"],
        "n_heads": sizes["heads"],
        "parallel_attn_mlp": parallel,
        "d_model": sizes["width"],
    }
    origin = {"made_by": "bag", **keys, "level": "node", "score": ranking, "method": METHOD}
    return {"cfg": config, "nodes": nodes, "edges": edges, "origin": origin}


def write_graph(graph: dict[str, Any], path: Path) -> None:
    """Write a graph as JSON, complete or not at all."""
    with replacing(path) as partial:
        text = json.dumps(graph, allow_nan=False, separators=(",", ":"))
        partial.write_text(text + "\n", encoding="utf-8")


def _scores(bag: Database, keys: dict[str, str], ranking: str) -> dict[tuple[int, int], float]:
    """Return the score of each head, by (layer, head). Raises CircuitError if one has none."""
    rows = bag.sql(EFFECTS, **keys).pl()
    if not len(rows):
        present = "from component_effects select distinct subject, operator order by all"
        known = [f"{subject} {operator}" for subject, operator in bag.sql(present).fetchall()]
        problem = f"component_effects has no heads of {keys['subject']} {keys['operator']}"
        raise CircuitError(f"{problem}; available: {', '.join(known) or 'no model'}")
    scores = {}
    for row in rows.iter_rows(named=True):
        score = row[ranking]
        if score is None or not math.isfinite(score):
            problem = f"{ranking} of head {row['head']} of layer {row['layer']} is {score}"
            raise CircuitError(f"{problem}; MIB needs a number, use the ranking logit_effect")
        scores[row["layer"], row["head"]] = score
    return scores


def _kept(
    bag: Database,
    keys: dict[str, str],
    heads: int | None,
    scores: dict[tuple[int, int], float],
) -> set[tuple[int, int]]:
    """Return the heads of a circuit. Ties go to the earlier layer, then head, as in the tables."""
    if heads is None:
        circuit = set(bag.sql(CIRCUIT, **keys).fetchall())
        if not circuit:  # the smallest circuit is never empty
            problem = f"circuit_heads has no circuit of {keys['subject']} {keys['operator']}"
            way_out = f"{ways_to('circuit_heads', keys['subject'])} Or name a size with --heads."
            raise CircuitError(f"{problem}. {way_out}")
        return circuit
    if not 0 <= heads <= len(scores):
        raise CircuitError(f"a circuit of {heads} heads; the model has 0 to {len(scores)}")
    return set(sorted(scores, key=lambda place: (-scores[place], place))[:heads])


def _edges(names: list[list[str]], parallel: bool) -> Iterator[tuple[str, str, str]]:
    """Yield each edge: the nodes at its ends, and which input of a head it enters.

    names: of the heads, by layer.
    """
    before = ["input"]
    for layer, heads in enumerate(names):
        mlp = f"m{layer}"
        for source in before:
            for head in heads:
                for label in ("<q>", "<k>", "<v>"):
                    yield source, head, label
        for source in before if parallel else [*before, *heads]:
            yield source, mlp, ""
        before += [*heads, mlp]
    for source in before:
        yield source, "logits", ""
