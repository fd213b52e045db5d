"""Circuits as MIB's graphs, and CPR and CMD: a reference that MIB's own code computed."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from stages.bridges import circuit
from stages.bridges.mib import CircuitError, areas, circuit_graph
from stages.lib.core.tables import write_table
from stages.lib.dictionary import COLUMN
from stages.lib.sql.database import Database, connect

REFERENCE = json.loads(Path(__file__).with_name("mib_reference.json").read_text())
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
RANDOM = {0: [0.0, 0.25, 1.0], 1: [0.75]}  # seed -> faithfulness of 0, 6 and 12 heads, or of 6


def curve(circuit: str, heads: list[int], faithfulness: list[float], seed: int | None = None):
    """Return rows of head_faithfulness."""
    made = pl.DataFrame({"heads": heads, "faithfulness": faithfulness})
    return made.select(
        pl.lit("s").alias("subject"),
        pl.lit("add").alias("operator"),
        pl.lit(circuit).alias("circuit"),
        pl.col("heads").cast(pl.Int16),
        pl.lit(seed).cast(pl.Int32).alias("seed"),
        "faithfulness",
    )


def neurons(circuit: str, counts: list[int], faithfulness: list[float]) -> pl.DataFrame:
    """Return rows of faithfulness, of circuits of neurons."""
    rows = curve(circuit, counts, faithfulness)
    rows = rows.rename({"heads": "neurons_per_layer"}).cast({"neurons_per_layer": pl.Int32})
    return rows.with_columns(experiment=pl.lit("neuron_circuit"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of the reference, with two random rankings and circuits of neurons."""
    folder = tmp_path_factory.mktemp("mib") / "data"
    sizes = {**REFERENCE["sizes"], "subject": "s", "neurons": 1000}
    places = [(int(name[1]), int(name[4])) for name in REFERENCE["scores"]]
    layers, heads = zip(*places, strict=True)
    effects = pl.DataFrame(
        {
            "layer": layers,
            "head": heads,
            "logit_effect": REFERENCE["scores"].values(),
            "effect": [None] + [1.0] * 11,
        },
        schema_overrides={"layer": pl.Int16, "head": pl.Int16},
    ).with_columns(
        subject=pl.lit("s"),
        operator=pl.lit("add"),
        component=pl.lit("head"),
        position=pl.lit("last"),
    )
    tables = {
        "store/architecture": pl.DataFrame(sizes),
        "circuit/component_effects": effects,
        "circuit/circuit_heads": effects.sort("logit_effect", descending=True).head(4),
        "circuit/head_faithfulness": pl.concat(
            [
                curve("logit_effect", [*range(13)], REFERENCE["faithfulness"]),
                curve("random", [0, 6, 12], RANDOM[0], 0),
                curve("random", [6], RANDOM[1], 1),
                curve("nothing", [0], [0.0]),
            ]
        ),
        "neurons/faithfulness": pl.concat(
            [neurons("effect", [0, 500], [0.0, 0.5]), neurons("heads", [1000], [1.0])]
        ),
    }
    for name, table in tables.items():
        path = folder / "s" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(table, path)
    return folder


@pytest.fixture(scope="module")
def bag(data: Path) -> Database:
    return connect(data)


def test_cpr_and_cmd_are_those_of_mibs_code(bag: Database):
    [row] = areas(bag, "s").filter(level="head", circuit="logit_effect").to_dicts()
    assert row["cpr"] == pytest.approx(REFERENCE["area_under"], abs=1e-12)
    assert row["cmd"] == pytest.approx(REFERENCE["area_from_1"], abs=1e-12)
    assert (row["units"], row["interpolated"]) == (12, 0)


def test_sizes_that_were_not_measured_lie_between_those_that_were(bag: Database):
    """Each ranking is a line: (0, 0), (a half, y), (1, 1), at sizes rounded down."""
    table = areas(bag, "s")
    wanted = [("head", "random", 0, 12, 0.25), ("head", "random", 1, 12, 0.75)]
    for level, circuit_name, seed, units, middle in [
        *wanted,
        ("neuron", "effect", None, 1000, 0.5),
    ]:
        rows = table.filter(level=level, circuit=circuit_name)
        [row] = rows.filter(pl.col("seed").eq_missing(seed)).to_dicts()
        heights = []
        for share in SHARES:
            x = int(share * units) / units
            heights.append(2 * x * middle if x <= 0.5 else middle + (2 * x - 1) * (1 - middle))
        expected = missed = 0.0
        for i in range(9):
            width = SHARES[i + 1] - SHARES[i]
            expected += width * (heights[i] + heights[i + 1]) / 2
            missed += width * (2 - heights[i] - heights[i + 1]) / 2
        assert row["cpr"] == pytest.approx(expected)
        assert row["cmd"] == pytest.approx(missed)
        assert row["interpolated"] == (2 if level == "head" else 8)


def test_the_query_has_the_columns_that_it_describes(bag: Database):
    query = (Path(circuit.__file__).parent / "queries/areas.sql").read_text()
    described = {}
    for line in query.splitlines():
        match = COLUMN.match(line.removeprefix("-- "))
        if match:
            described[match[1]] = match[2]
    relation = bag.sql(query, subject="s")
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    assert kinds == described


def test_a_graph_is_one_that_mib_reads(bag: Database):
    """The reference has its number of edges, and those that MIB's own pruning keeps."""
    graph = circuit_graph(bag, "s", "add")
    layers = {"n_layers": 3, "n_heads": 4, "d_model": 128, "parallel_attn_mlp": False}
    assert graph["cfg"] == layers
    assert len(graph["nodes"]) == 1 + 3 * 5 + 1
    assert len(graph["edges"]) == REFERENCE["edges"]
    in_graph = [name for name, edge in graph["edges"].items() if edge["in_graph"]]
    assert len(in_graph) == REFERENCE["edges_in_graph"]
    assert "a0.h3->m0" in in_graph
    assert "a1.h0->m1" not in in_graph
    assert graph["edges"]["m0->a2.h3<k>"] == {"score": 0.0, "in_graph": False}
    scores = {name: node["score"] for name, node in graph["nodes"].items() if "score" in node}
    assert scores == REFERENCE["scores"]


def test_circuits_of_each_size_keep_the_heads_that_mib_keeps(bag: Database):
    for share, kept in zip(SHARES, REFERENCE["kept"], strict=True):
        nodes = circuit_graph(bag, "s", "add", heads=int(share * 12))["nodes"]
        names = {name for name, node in nodes.items() if node["in_graph"]}
        assert names - {"input", "logits", "m0", "m1", "m2"} == set(kept)


def test_a_parallel_mlp_reads_no_head_of_its_layer(bag: Database):
    edges = circuit_graph(bag, "s", "add", parallel=True)["edges"]
    assert len(edges) == REFERENCE["edges"] - 3 * 4
    assert "a0.h0->m0" not in edges
    assert "a0.h0->m1" in edges


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "divide"}, "component_effects has no heads of s divide; available: s add"),
        ({"heads": 13}, "a circuit of 13 heads; the model has 0 to 12"),
        ({"ranking": "size"}, "unknown ranking 'size'; rankings: effect, logit_effect"),
        ({"ranking": "effect"}, "effect of head 0 of layer 0 is None; .* use the ranking logit"),
    ],
)
def test_errors_name_the_value_and_what_is_allowed(bag: Database, options: dict, message: str):
    with pytest.raises(CircuitError, match=message):
        circuit_graph(bag, **{"subject": "s", "operator": "add", **options})


def test_no_circuit_is_written_from_tables_that_lack_it(data: Path, tmp_path: Path):
    """The smallest circuit is never empty: without rows, its stage has not run for the model."""
    shutil.copytree(data, tmp_path / "data")
    table = tmp_path / "data/s/circuit/circuit_heads.parquet"
    write_table(pl.read_parquet(table).clear(), table)
    file = tmp_path / "circuit.json"
    stage = r"dvc repro stages/circuit/dvc.yaml:circuit_heads@s"
    with pytest.raises(SystemExit, match=rf"no circuit of s add\. .*{stage}.* --heads"):
        circuit.main(["s", "add", str(file), "--data", str(tmp_path / "data")])
    assert not file.exists()


def test_a_circuit_needs_no_table_of_its_scores(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data/s/neurons/faithfulness.parquet").unlink()
    file = tmp_path / "circuit.json"
    circuit.main(["s", "add", str(file), "--data", str(tmp_path / "data")])
    printed = capsys.readouterr().out
    assert "4 heads and all MLPs" in printed
    assert "CPR and CMD are unknown. There is no table faithfulness here." in printed
    assert json.loads(file.read_text())["nodes"]["a0.h3"]["in_graph"]


def test_the_command_writes_the_file_and_prints_the_scores(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    file = tmp_path / "circuit.json"
    circuit.main(["s", "add", str(file), "--heads", "2", "--data", str(data)])
    assert "CPR 0.680, CMD 0.319, by logit_effect; 10 of 10 sizes" in capsys.readouterr().out
    nodes = json.loads(file.read_text())["nodes"]
    assert nodes["a0.h3"]["in_graph"]
    assert not nodes["a1.h2"]["in_graph"]
    with pytest.raises(SystemExit, match="bag circuit: a circuit of 99 heads"):
        circuit.main(["s", "add", str(file), "--heads", "99", "--data", str(data)])
