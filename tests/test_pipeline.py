"""dvc repro end to end on the micro configuration: complete, repeatable, and whole after a kill."""

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path

import polars as pl
import pytest
import yaml
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from stages.lib.console import pipeline
from stages.lib.core import environment
from stages.lib.sql.database import connect
from tests.conftest import MAKE, run_in
from tests.declared import STAGES, key, pipelines

ACCURACY = ("-m", "stages.lib.sql.stage", "store/accuracy", "abacus")


def test_nothing_is_left_to_do(micro_copy: Path):
    """Run make in a copy, which does not wait for other tests that look at the project."""
    made = run_in(micro_copy, "bag", "status").stdout.splitlines()
    for target, name in (("all", "default"), ("study", "study")):
        done = run_in(micro_copy, *MAKE, target)
        printed = done.stdout
        assert printed.startswith(f"python -m stages.lib.console.branches {name}\n")
        assert "Running stage" not in printed
        assert not re.search(r"^stage \d", done.stderr, re.MULTILINE)
        with chdir(micro_copy):
            stages, _ = pipeline.plan([], target == "study")
        kept = re.findall(r"^Stage '([^']+)' didn't change", printed, re.MULTILINE)
        assert {*stages} == {*kept}
        assert printed.splitlines()[-5:] == made


def test_branches_make_what_is_missing_side_by_side(micro_copy: Path):
    """Test with DVC's own locks: neither branch waits for what the other looks at."""
    missing = {}
    for name in ("bag/steering", "heuristics/label_votes"):
        path = micro_copy / f"data/abacus/{name}.parquet"
        missing[path] = path.read_bytes()
        path.unlink()
    command = ("python", "-m", "stages.lib.console.branches", "default")
    printed = run_in(micro_copy, *command, more={"BAG_WORKERS": "2"}).stdout
    for path, content in missing.items():
        assert path.read_bytes() == content
        name = f"{path.parent.name}/dvc.yaml:{path.stem}@abacus'"
        assert len(re.findall(rf"Stage 'stages/{name} is cached", printed)) == 1
        assert len(re.findall(rf"Stage 'stages/{name} didn't change", printed)) == 1


def locked(project: Path) -> dict[str, dict]:
    """Every stage that has run, as DVC calls it, with its entry in a lock."""
    locks = {
        file: yaml.load((project / file).with_suffix(".lock").read_text(), yaml.CSafeLoader)[
            "stages"
        ]
        for file in pipelines()
    }
    return {
        stage if file == "dvc.yaml" else f"{file}:{stage}": entry
        for file, lock in locks.items()
        for stage, entry in lock.items()
    }


def test_every_declared_output_is_there(micro: Path):
    lock = locked(micro)
    for stage in lock.values():
        for out in stage["outs"]:
            assert (micro / out["path"]).exists()
    nobodys = {
        "subjects/hub",
        "subjects/gguf",
        "neurons/digit_interventions",
        "neurons/digit_runs",
        "neurons/digit_circuits",
        "neurons/digit_figure",
        "claims/digit_claims",
    }  # no model is of the Hub or a GGUF file, no subject asked for digits
    assert set(map(key, lock)) == set(STAGES) - nobodys


def test_no_output_is_kept_twice(micro: Path):
    """Every cached output is a link to the one copy in DVC's cache.

    (Our own subject ships in Git.)
    """
    outputs = [
        p
        for p in (micro / "data").rglob("*")
        if p.suffix in {".h5", ".parquet"} and p.parent.name != "training_log"
    ]
    assert len(outputs) > 20
    assert [p for p in outputs if p.stat().st_nlink < 2] == []


def test_a_stage_run_by_hand_leaves_the_cache_alone(micro_copy: Path):
    assert (micro_copy / "data/abacus/store/accuracy.parquet").stat().st_nlink == 2
    before = {p: p.read_bytes() for p in (micro_copy / ".dvc/cache").rglob("*") if p.is_file()}
    run_in(micro_copy, "python", *ACCURACY)
    run_in(micro_copy, "python", "-m", "stages.corpus.tasks")
    assert {p: p.read_bytes() for p in before} == before


WIDE = [
    feature for feature in __cpu_dispatch__ if __cpu_features__[feature]
]  # what numpy has code of its own for
# of every library that chooses its code by the processor, the code that it runs on the plainest
PLAINEST = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "NPY_DISABLE_CPU_FEATURES": " ".join(WIDE),
    "NUMBA_CPU_NAME": "x86-64",
    "OPENBLAS_CORETYPE": "Prescott",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-FMA",
}
# its weights ship in Git; they are those of the machine that it ran on
TRAINING = "python -m stages.subjects.train"
# of torch, numpy or numba: queries, figures, pages, and what only counts, compares or draws whole
# numbers
NO_ARITHMETIC = (
    r"stages\.(lib\.sql\.stage|report\.|\S*figure|store\.(prompts|architecture)"
    r"|heuristics\.catalogue|mediation\.mediation_pairs"
    r"|claims\.(claims|study_claims)|settings)"
)
# the same code as that of other interventions, which are forced again
ALIKE = r"runs (circuit/(cut|head_circuit)|neurons/neuron_circuit|bag/(bag|neuron_knockout)) "
# of these, the ones that are forced again nevertheless
SAMPLE = r"stages\.(report\.subject|store\.figures|lib\.sql\.stage (store|claims)/)"
LEFT = rf"{TRAINING}|{ALIKE}|^(?!.*{SAMPLE}).*{NO_ARITHMETIC}"
COMPILED = r"stages\.heuristics\.(scores|permutation_tests|discovery_search)"
OF_PLANTED = rf"{COMPILED}|stages\.(report\.subject|store\.figures)"
# the fits of `planted` are those that have differed between processors
BOTH = r"stages\.theories\.theory_fits"
WORKERS = "3"
OTHERS = {"PYTHONHASHSEED": "7", "HOME": "/nowhere", "LC_ALL": "C"}


def again(name: str, command: str) -> bool:
    """Whether a stage, as DVC calls it, is forced again: of no or all subjects, or of one."""
    subject = name.partition("@")[2]
    if not subject:
        return True
    if re.search(OF_PLANTED, command):
        return subject == "planted"
    return subject == "abacus" or (subject == "planted" and bool(re.search(BOTH, command)))


@pytest.mark.early
def test_forced_again_on_another_processor_every_byte_is_the_same(
    micro_copy: Path, everything: list[str]
):
    """Run stages again under conditions that must not change a byte.

    They are the stages of one model, and of no model or all models, that compute with torch, numpy
    or numba, except training and runs that others resemble, and a sample of the others. More
    processes run them, with the plainest instructions, in a folder with an odd name, for a user
    without a home or a language, whose files others cannot read.

    The figures and the page are those of `planted`, which are fewer. So are its stages that compile
    code; one process runs them.
    """
    micro_copy = micro_copy.rename(micro_copy.with_name("my prōject o'brien $x"))
    lock = {
        name: entry
        for name, entry in locked(micro_copy).items()
        if not re.search(LEFT, entry["cmd"])
    }
    ran = {name: entry["cmd"] for name, entry in lock.items() if again(name, entry["cmd"])}
    planned_here = [name for name in everything if name in ran]
    assert sorted(planned_here) == sorted(ran)
    for path in {micro_copy / out["path"] for name in planned_here for out in lock[name]["outs"]}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    script = "set -e; umask 077\n" + "\n".join(
        f"{environment.WORKERS}=1 " * bool(re.search(COMPILED, ran[name])) + ran[name]
        for name in planned_here
    )
    more = {**PLAINEST, **OTHERS, environment.WORKERS: WORKERS}
    run_in(micro_copy, "python", "-m", "stages.warm", "sh", "-c", script, more=more)
    assert "up to date" in run_in(micro_copy, "dvc", "status").stdout


def test_accuracy_is_the_share_of_cells_predicted_right(micro: Path):
    """accuracy.sql against plain counting, and predictions against the activations' cells."""
    database = connect(micro / "data")
    cells = pl.read_parquet(micro / "data/corpus/cells.parquet")
    for subject in ("abacus", "planted"):
        predictions = pl.read_parquet(micro / f"data/{subject}/store/predictions.parquet")
        right = predictions.join(cells, on=["operator", "op1", "op2"], validate="1:1").with_columns(
            hit=pl.col("predicted") == pl.col("result"),
        )
        assert (right["hit"].fill_null(False) == right["correct"]).all()
        assert len(right) == len(
            cells.filter(pl.col("operator").is_in(predictions["operator"].unique().to_list()))
        )
        for row in pl.read_parquet(micro / f"data/{subject}/store/accuracy.parquet").rows(
            named=True,
        ):
            part = right.filter(operator=row["operator"], split=row["split"])
            assert row["cells"] == len(part)
            assert row["accuracy"] == pytest.approx(part["hit"].fill_null(False).mean(), abs=1e-12)
            majority = part["result"].value_counts()["count"].max() / len(part)
            assert row["majority_accuracy"] == pytest.approx(majority, abs=1e-12)
    stored = database.sql(
        "select count(*) from activations "
        "where subject = 'abacus' and layer = 0 and neuron = 0 and result is not null",
    ).fetchall()
    assert stored == [(len(cells),)]


def test_variances_are_those_of_the_stored_activations(micro: Path):
    database = connect(micro / "data")
    variances = pl.read_parquet(micro / "data/abacus/store/neuron_variances.parquet")
    for operator in ("add", "multiply"):
        first = variances.filter(pl.col("operator") == operator, pl.col("rank") == 1).row(
            0, named=True
        )
        values = database.sql(
            "select activation from activations where subject = 'abacus' and operator = $o "
            "and layer = $l and neuron = $n and result is not null",
            o=operator, l=first["layer"], n=first["neuron"],
        ).pl()["activation"].cast(pl.Float64)  # fmt: skip
        assert first["variance"] == pytest.approx(values.var(ddof=0), rel=1e-6)
        assert (
            first["variance"] == variances.filter(pl.col("operator") == operator)["variance"].max()
        )


def test_training_teaches_what_the_untrained_subject_does_not_know(micro: Path):
    log = pl.read_parquet(micro / "data/subjects/training_log/abacus.parquet").select(
        "step",
        accuracy=pl.mean_horizontal(pl.col("^.*_train$")),
    )
    assert log.row(0) == (0, pytest.approx(0, abs=0.1))
    measured = json.loads(
        run_in(
            micro,
            "bag",
            "--json",
            "select avg(accuracy) as a from accuracy where subject = 'abacus'",
        ).stdout
    )
    assert log["accuracy"][-1] > 0.1
    assert measured[0]["a"] > 0.1


def test_dvc_shows_metrics_and_plots(micro: Path, tmp_path: Path):
    metrics = json.loads(run_in(micro, "dvc", "metrics", "show", "--json").stdout)
    shown = next(v for v in metrics.values())["data"]["reports/abacus/metrics.json"]["data"]
    assert set(shown["grid"]) == {"add", "subtract", "multiply", "divide"}
    assert set(shown["tasks"]) == {
        "arithmetic",
        "number_words",
        "three_operands",
        "retrieval",
        "factual",
    }
    page = Path(
        run_in(micro, "dvc", "plots", "show", "-o", str(tmp_path / "dvc_plots"))
        .stdout.strip()
        .removeprefix("file://")
    )
    assert "training" in page.read_text()


def test_a_changed_query_reruns_only_what_needs_it(micro_copy: Path):
    query = micro_copy / "stages/store/accuracy.sql"
    query.write_text("-- a remark\n" + query.read_text())
    printed = run_in(micro_copy, "dvc", "repro", "--all-pipelines").stdout
    measured = {
        f"stages/store/dvc.yaml:accuracy@{name}"
        for name in ("abacus", "abacus-step-00100", "planted")
    }
    showing = {"report", "stages/report/dvc.yaml:study"}  # the query's text
    assert set(re.findall(r"Running stage '([^']+)'", printed)) == measured | showing


def test_a_query_stage_sees_only_what_it_declares(micro_copy: Path):
    for text in ("select * from facts", "select * from read_parquet('data/corpus/facts.parquet')"):
        (micro_copy / "stages/store/accuracy.sql").write_text(text)
        done = run_in(micro_copy, "python", *ACCURACY, check=False)
        assert done.returncode != 0
        assert "facts" in done.stderr
