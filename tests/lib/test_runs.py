"""The stage that carries out interventions: stopped half-way, resumed, and held against the tables it is made from."""

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import yaml

from stages.lib.core.digest import digest
from stages.lib.executor import runs
from stages.lib.units.parts import Parts
from tests.conftest import run_in


@pytest.fixture
def project(micro_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(micro_copy)
    return micro_copy


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[int]:
    """Notes each block that is computed; interrupts behind `stop_after` of them."""
    done: list[int] = []
    usual = runs.rows

    def rows(*arguments) -> pl.DataFrame:
        if len(done) == stop_after:
            raise KeyboardInterrupt
        done.append(len(done))
        return usual(*arguments)

    monkeypatch.setattr(runs, "rows", rows)
    return done


def test_an_interrupted_run_goes_on_behind_its_last_block(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    output = project / "data/abacus/circuit/runs/component.parquet"
    expected = output.read_bytes()
    output.unlink()
    with monkeypatch.context() as stopped:
        first = counted(stopped, stop_after=3)
        with pytest.raises(SystemExit, match="interrupted; what is done is kept"):
            runs.main("circuit/component", "abacus")
    assert len(first) == 3
    assert not output.exists()
    assert len(list(output.with_suffix(".parts").rglob("*.parquet"))) == 3
    done = counted(monkeypatch)
    runs.main("circuit/component", "abacus")
    rest = len(done)
    assert output.read_bytes() == expected
    assert not output.with_suffix(".parts").exists()
    output.unlink()
    runs.main("circuit/component", "abacus")
    assert len(done) - rest == 3 + rest > 3


def test_parts_of_other_inputs_are_not_used(project: Path, monkeypatch: pytest.MonkeyPatch):
    output = project / "data/abacus/circuit/runs/component.parquet"
    with monkeypatch.context() as stopped:
        counted(stopped, stop_after=3)
        with pytest.raises(SystemExit, match="interrupted; what is done is kept"):
            runs.main("circuit/component", "abacus")
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["runs"]["rows_per_pass"] += 1
    Path("params.yaml").write_text(yaml.safe_dump(settings))
    again = counted(monkeypatch)
    before = pl.read_parquet(output)
    runs.main("circuit/component", "abacus")
    after = pl.read_parquet(output)
    assert len(again) > 3
    keys, floats = (
        ["intervention", "pair"],
        ["answer_logit", "counterfactual_logit", "max_logit", "mean_logit"],
    )
    before, after = before.sort(keys), after.sort(keys)
    assert after.drop(*floats, "answer_probability", "counterfactual_probability").equals(
        before.drop(*floats, "answer_probability", "counterfactual_probability")
    )
    for name in floats:
        assert (after[name] - before[name]).abs().max() < 1e-4


def test_every_intervention_is_run_on_every_pair_that_it_names(micro: Path):
    circuit, neurons = (
        ("circuit/component", "circuit/head_circuit", "circuit/cut"),
        ("neurons/neuron", "neurons/neuron_circuit"),
    )
    for table_of in (*circuit, *neurons, "bag/knockout"):
        for subject in ("abacus", "planted"):
            folder, (chapter, experiment) = micro / "data" / subject, table_of.split("/")
            said = pl.read_parquet(folder / f"{chapter}/runs/{experiment}.parquet")
            wanted = (
                pl.read_parquet(folder / f"{table_of}_interventions.parquet")
                .select("intervention", "operator", "split")
                .unique()
            )
            every = wanted.join(
                pl.read_parquet(folder / "circuit/pairs.parquet").select(
                    "pair", of="operator", in_="split"
                ),
                how="cross",
            )
            every = every.filter(
                (pl.col("operator").is_null() | (pl.col("operator") == pl.col("of")))
                & (pl.col("split").is_null() | (pl.col("split") == pl.col("in_")))
            )
            assert said.select("intervention", "pair").n_unique() == len(said)
            assert set(said.select("intervention", "pair").rows()) == set(
                every.select("intervention", "pair").rows()
            )


def test_the_clean_run_says_what_the_dump_says(micro: Path):
    """Two ways through the model: the table predictions, and pairs run without a patch."""
    folder = micro / "data/abacus"
    pairs = pl.read_parquet(folder / "circuit/pairs.parquet").filter(pl.col("split") == "discovery")
    clean = pl.read_parquet(folder / "circuit/runs/component.parquet").filter(
        pl.col("intervention") == 0
    )
    both = clean.join(pairs, on="pair", validate="1:1").join(
        pl.read_parquet(folder / "store/predictions.parquet"),
        on=["operator", "op1", "op2"],
        suffix="_dumped",
        validate="m:1",
    )
    assert len(both) == len(pairs) > 0
    assert both["correct"].all()
    for name in ("answer_logit", "max_logit", "answer_probability"):
        assert (both[name] - both[f"{name}_dumped"]).abs().max() < 1e-4


def test_an_experiment_of_ones_own_is_two_queries_and_three_entries(project: Path):
    """As the chapter's README says: does silencing the whole last MLP at the last position change the answer?"""
    chapter = Path("stages/circuit")
    (chapter / "mine_interventions.sql").write_text("""
        select $subject as subject, unnest([0, 1]) as intervention, null::varchar as operator, 'evaluation' as split,
            unnest(['none', 'mlp']) as component, unnest([null, layers - 1]) as layer, null::integer[] as units,
            unnest([null, 'last']) as position, null::varchar as key_position, unnest([null, 'zero']) as replacement
        from architecture order by intervention""")
    (chapter / "mine.sql").write_text("""
        select $subject as subject, intervention, avg(correct::int) as accuracy, avg(answer_probability) as probability
        from runs group by intervention order by intervention""")
    entries = yaml.safe_load((chapter / "dvc.yaml").read_text())
    for old, new in (
        ("component_interventions", "mine_interventions"),
        ("component_runs", "mine_runs"),
        ("component_effects", "mine"),
    ):
        copied = (
            yaml.safe_dump(entries["stages"][old])
            .replace(old, new)
            .replace("circuit/component", "circuit/mine")
        )
        entry = yaml.safe_load(
            copied.replace("component_interventions", "mine_interventions").replace(
                "runs/component", "runs/mine"
            )
        )
        one = entry["do"]
        one["deps"] = [
            path
            for path in one["deps"]
            if not path.endswith(".sql") or path.endswith(f"/{new}.sql")
        ]
        one["outs"] = [
            path
            for path in one["outs"]
            if new.endswith("_runs") or path.endswith(f"/{new}.parquet")
        ]
        entries["stages"][new] = entry
    (chapter / "dvc.yaml").write_text(yaml.safe_dump(entries))
    run_in(project, "dvc", "repro", "--quiet", "stages/circuit/dvc.yaml:mine@abacus")
    clean, silenced = (
        pl.read_parquet("data/abacus/circuit/mine.parquet").sort("intervention").rows(named=True)
    )
    assert clean["accuracy"] == 1
    assert silenced["accuracy"] < 1
    assert silenced["probability"] != clean["probability"]


def test_parts_are_put_together_in_order_and_removed(tmp_path: Path):
    output, parts = tmp_path / "runs/x.parquet", [pl.DataFrame({"n": [i, i]}) for i in range(3)]
    kept = Parts(output, "key")
    for number in (2, 0):
        kept.write(number, parts[number])
    kept = Parts(output, "key")
    assert kept.missing(3) == [1]
    assert Parts(output, "another").missing(3) == [0, 1, 2]
    kept = Parts(output, "key")
    for number, part in enumerate(parts):
        kept.write(number, part)
    kept.finish([[0], [1, 2]], parts[0].clear())
    assert pl.read_parquet(output)["n"].to_list() == [0, 0, 1, 1, 2, 2]
    assert not output.with_suffix(".parts").exists()


def test_a_digest_knows_contents_names_and_facts(tmp_path: Path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("y")
    digests = [digest([first, second]), digest([first, second], 1), digest([first])]
    second.write_text("z")
    digests.append(digest([first, second]))
    assert len(set(digests)) == 4
    assert digest([second, first]) == digests[3]


def test_only_blocks_on_one_pair_are_written_together(monkeypatch: pytest.MonkeyPatch):
    def block(runs_of: int, pair: int | None) -> SimpleNamespace:
        return SimpleNamespace(runs=runs_of, interventions=[SimpleNamespace(pair=pair)])

    blocks = [
        block(3, None),
        block(3, None),
        *(block(4, n) for n in range(5)),
        block(20, 7),
        block(1, 8),
        block(2, None),
        block(1, 9),
    ]
    bundles = runs.bundled(blocks, 10)
    assert [one for bundle in bundles for one in bundle] == blocks
    assert [[one.runs for one in bundle] for bundle in bundles] == [
        [3],
        [3],
        [4, 4],
        [4, 4],
        [4],
        [20],
        [1],
        [2],
        [1],
    ]
