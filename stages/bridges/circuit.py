"""`bag circuit SUBJECT OPERATOR FILE`: write a circuit of heads for MIB's circuit track."""

import argparse
from pathlib import Path

from stages.bridges.mib import RANKINGS, CircuitError, areas, circuit_graph, write_graph
from stages.lib.console.common import add_data, folder, opened
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.sql.database import ERRORS, Database, sentence


def main(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    try:
        with opened(folder(options.data)) as bag:
            graph = circuit_graph(
                bag,
                options.subject,
                options.operator,
                options.heads,
                options.ranking,
                options.parallel,
            )
            write_graph(graph, options.file)
            heads = sum(node["in_graph"] for node in graph["nodes"].values() if "score" in node)
            print(f"Wrote {options.file}: a circuit of nodes, {heads} heads and all MLPs.")
            for line in _scores(bag, options):
                print(line)
    except (*ERRORS, CircuitError, OSError) as error:
        raise SystemExit(f"bag circuit: {sentence(error)}") from None


def _scores(bag: Database, options: argparse.Namespace) -> list[str]:
    """Return lines about the scores of the ranking; they need tables that the file does not."""
    try:
        table = areas(bag, options.subject)
    except ERRORS as error:
        return [f"CPR and CMD are unknown. {sentence(error)}"]
    rows = table.filter(level="head", operator=options.operator, circuit=options.ranking)
    lines = []
    for row in rows.iter_rows(named=True):
        if row["cpr"] is None:
            lines.append("CPR and CMD are unknown: a circuit's faithfulness is undefined")
            continue
        scores = f"CPR {row['cpr']:.3f}, CMD {row['cmd']:.3f}, by {row['circuit']}"
        lines.append(f"{scores}; {10 - row['interpolated']} of 10 sizes measured")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bag circuit",
        description="Write a circuit of heads as the JSON of MIB's circuit track.",
        epilog="example: bag circuit abacus add circuit.json",
    )
    parser.add_argument("subject", help="the model")
    parser.add_argument("operator", choices=OPERATORS, help="operator of the circuit")
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument(
        "--heads",
        type=int,
        help="heads in the circuit, those with the largest effects (default: as in circuit_heads)",
    )
    parser.add_argument(
        "--ranking",
        choices=RANKINGS,
        default="logit_effect",
        help="effect that scores the heads (default: logit_effect)",
    )
    parser.add_argument(
        "--parallel",
        action="store_true",
        help="the model's MLPs read the same residual stream as the heads of their layer",
    )
    add_data(parser)
    return parser
