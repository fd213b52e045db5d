"""Datasets: the folder as Hugging Face `datasets` reads it, from its card and its Parquet files."""

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from stages.bridges import export
from stages.bridges.dataset import DatasetError, to_dataset
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database, QueryError, connect

EVERY_TYPE = """
    select 'a' as text, 1::tinyint as small, 2::hugeint as huge, 1.5::float as single,
        2.5 :: double as wide, true as flag, date '2026-01-02' as day, ['x'] as texts,
        [1, 2]::float[2] as fixed, {a: 1, b: [[2]]} as both, 'u'::enum('u', 'v') as word
"""
FEATURES = [
    {"name": "text", "dtype": "string"},
    {"name": "small", "dtype": "int8"},
    {"name": "huge", "dtype": "int64"},
    {"name": "single", "dtype": "float32"},
    {"name": "wide", "dtype": "float64"},
    {"name": "flag", "dtype": "bool"},
    {"name": "day", "dtype": "date32"},
    {"name": "texts", "list": "string"},
    {"name": "fixed", "list": "float32"},
    {
        "name": "both",
        "struct": [{"name": "a", "dtype": "int32"}, {"name": "b", "list": {"list": "int32"}}],
    },
    {"name": "word", "dtype": "string"},
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with one table of one model."""
    root = tmp_path_factory.mktemp("project")
    entry = {"source": "models/mine", "revision": "step 7", "dtype": "float64"}
    (root / "params.yaml").write_text(yaml.safe_dump({"subjects": {"mine": entry}}))
    path = root / "data/mine/circuit/circuit_heads.parquet"
    path.parent.mkdir(parents=True)
    rows = pl.DataFrame({"subject": "mine", "operator": "add", "head": range(5)})
    write_table(rows.with_columns(pl.col("head").cast(pl.Int16)), path)
    return root


@pytest.fixture(scope="module")
def bag(project: Path) -> Database:
    return connect(project / "data")


def front(folder: Path) -> dict:
    """Return the YAML at the head of a card."""
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def test_features_are_those_of_the_files(bag: Database, tmp_path: Path):
    folder = to_dataset(bag, EVERY_TYPE, tmp_path / "types")
    assert front(folder)["dataset_info"]["features"] == FEATURES
    [row] = pq.read_table(folder / "data/train-00000.parquet").to_pylist()
    assert (row["huge"], row["word"], row["fixed"]) == (2, "u", [1.0, 2.0])
    assert row["both"] == {"a": 1, "b": [[2]]}


def test_rows_keep_their_order_over_several_files(bag: Database, tmp_path: Path):
    query = "select head, head + 1 as next from circuit_heads order by head desc"
    folder = to_dataset(bag, query, tmp_path / "rows", rows=2)
    files = sorted(folder.glob(front(folder)["configs"][0]["data_files"][0]["path"]))
    assert [file.name for file in files] == [f"train-0000{i}.parquet" for i in range(3)]
    assert pl.concat(map(pl.read_parquet, files))["head"].to_list() == [4, 3, 2, 1, 0]
    again = to_dataset(bag, query, tmp_path / "again", rows=2)
    for file in [*files, folder / "README.md"]:
        assert file.read_bytes() == (again / file.relative_to(folder)).read_bytes()


def test_the_card_has_licence_query_meanings_and_models(bag: Database, tmp_path: Path):
    query = (
        "select subject, head, (head * 2)::integer as twice from circuit_heads where subject = $s"
    )
    folder = to_dataset(bag, query, tmp_path / "card", {"s": "mine"})
    assert front(folder)["license"] == "mit"
    card = (folder / "README.md").read_text()
    for line in (
        f"```sql\n{query}\n```",
        "* `$s` is `'mine'`",
        "5 rows in 1 Parquet files.",
        "| head | int16 | attention head of the layer, from 0 |",
        "| twice | int32 | computed by the query |",
        "| mine | models/mine | step 7 | float64 |",
    ):
        assert line in card
    assert "| circuit_heads | The heads of each operator's circuit" in card


def test_no_rows_are_a_dataset_too(bag: Database, tmp_path: Path):
    folder = to_dataset(
        bag, "from circuit_heads where subject = 'mine' and head > 9", tmp_path / "0"
    )
    assert len(pl.read_parquet(folder / "data/*.parquet")) == 0
    assert "| mine | models/mine |" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("select map {'a': 1} as m", DatasetError, "column m is of the type map.* to varchar"),
        ("select 2::hugeint ** 70 as h, 1::hugeint << 70 as n", DatasetError, "column n does not"),
        ("drop table circuit_heads", QueryError, "only reads"),
    ],
)
def test_nothing_is_left_of_what_cannot_be_written(
    bag: Database, tmp_path: Path, query: str, error: type, message: str
):
    with pytest.raises(error, match=message):
        to_dataset(bag, query, tmp_path / "refused")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_folder_once(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    arguments = ["from circuit_heads where head < $most", str(tmp_path / "heads"), "-p", "most=3"]
    export.main([*arguments, "--data", str(project / "data")])
    assert "load_dataset" in capsys.readouterr().out
    assert len(pl.read_parquet(tmp_path / "heads/data/*.parquet")) == 3
    with pytest.raises(SystemExit, match="heads is not an empty folder; name a new one"):
        export.main([*arguments, "--data", str(project / "data")])
