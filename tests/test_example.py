"""The pages of examples/qwen have the numbers of the table files beside them."""

import csv
import re
import runpy
from functools import cache
from pathlib import Path
from statistics import fmean

import duckdb
import polars as pl
import pytest

from stages.claims import ledger
from stages.lib import dictionary
from stages.lib.sql.database import Database
from tests import shown
from tests.micro import ROOT

EXAMPLE = ROOT / "examples/qwen"
PAGES = ("README.md", "details.md")
PAGE = "".join((EXAMPLE / page).read_text(encoding="utf-8") for page in PAGES)
OPERATORS = {"+": "add", "−": "subtract", "×": "multiply", "÷": "divide"}


@cache
def table(name: str) -> list[dict[str, str]]:
    with (EXAMPLE / f"tables/{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(name: str, **keys: str) -> dict[str, str]:
    """Return the one row of a table that has these values."""
    [only] = [row for row in table(name) if row.items() >= keys.items()]
    return only


def check(cell: str, values: list[float]) -> None:
    """Check that a cell shows these values, in order, and no others."""
    numbers = shown.numbers(cell)
    assert len(numbers) == len(values), (cell, values)
    for number, value in zip(numbers, values, strict=True):
        assert shown.is_rounded(number, value), (cell, values)


def test_the_tables_are_written_from_those_of_the_project(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """The same columns are written from another model's tables. No digits are compared there."""
    write = runpy.run_path(str(EXAMPLE / "write_tables.py"))["main"]
    monkeypatch.chdir(micro)
    write("abacus", tmp_path)
    digits = ("digit_circuits", "digit_claims")
    expected = "".join(f"{name} is not made, and stays as it is\n" for name in digits)
    assert capsys.readouterr().out == expected
    written = {file.name for file in tmp_path.iterdir()}
    kept = {file.name for file in (EXAMPLE / "tables").iterdir()}
    assert written == kept - {f"{name}.csv" for name in digits}
    for name in written:
        read = pl.scan_csv if name.endswith("csv") else pl.scan_parquet
        new, old = (read(folder / name).collect() for folder in (tmp_path, EXAMPLE / "tables"))
        assert len(new)
        assert new.columns == old.columns, name
    [_, first, *_] = (tmp_path / "accuracy.csv").read_text().splitlines()
    [measured, *_] = pl.read_parquet("data/abacus/store/accuracy.parquet").sort(pl.all()).rows()
    assert first.split(",")[3] == f"{measured[3]:.6g}"


def test_accuracy_is_that_of_the_table():
    rows = shown.rows(PAGE, "operator | accuracy |")
    assert [sign for sign, *_ in rows] == list(OPERATORS)
    for sign, accuracy, majority, cells in rows:
        measured = row("accuracy", operator=OPERATORS[sign])
        check(accuracy, [float(measured["accuracy"])])
        check(majority, [float(measured["majority_accuracy"])])
        check(cells, [int(measured["cells"])])


def test_probes_and_effects_are_those_of_the_tables():
    majority, *layers = shown.rows(PAGE, "layer | probe")
    assert len(layers) >= 10
    for cell, operator in zip(majority[1:5], OPERATORS.values(), strict=True):
        measured = row("probes", operator=operator, layer="0", position="last")
        check(cell, [float(measured["majority_accuracy"])])
    for layer, *cells in layers:
        for cell, operator in zip(cells[:4], OPERATORS.values(), strict=True):
            measured = row("probes", operator=operator, layer=layer, position="last")
            check(cell, [float(measured["accuracy"])])
        for cell, operator in zip(cells[4:], OPERATORS.values(), strict=True):
            measured = row("mlp_effects_at_last", operator=operator, layer=layer)
            check(cell, [float(measured["logit_effect"])])


def test_circuits_of_heads_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | heads")
    assert [sign for sign, *_ in rows] == list(OPERATORS)
    for sign, heads, faithfulness in rows:
        measured = row("smallest_circuits", operator=OPERATORS[sign], target="0.9")
        check(heads, [int(measured["heads"])])
        check(faithfulness, [float(measured["random_faithfulness"])])


def labelled(operator: str) -> pl.DataFrame:
    """Return the labelled neurons of an operator, one row each: layer and neuron."""
    labels = pl.read_parquet(EXAMPLE / "tables/labels.parquet").filter(operator=operator)
    return labels.select("layer", "neuron").unique()


def test_labelled_neurons_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | labelled")
    assert [sign for sign, *_ in rows] == list(OPERATORS)
    first_late = int(table("late_layers")[0]["first_layer"])
    between = []
    for sign, everywhere, late, _ in rows:
        neurons = labelled(OPERATORS[sign])
        check(everywhere, [len(neurons)])
        check(late, [neurons.filter(pl.col("layer") >= first_late).height])
        check(late, [int(kept(sign, "label", "heuristic")["neurons"])])
        between.append(neurons.filter(pl.col("layer").is_between(7, 13)).height / len(neurons))
    [shares] = re.findall(r"labelled neurons, ([\d., and]+)\s+are in\s+layers 7 to 13", PAGE)
    check(shares, between)


def test_best_labels_are_those_of_the_figure():
    labels = pl.read_parquet(EXAMPLE / "tables/labels.parquet").filter(rank=1)
    keys = ["operator", "layer", "quantity", "kind"]
    counts = {key: len(rows) for key, rows in labels.group_by(keys)}
    for each in table("labels_by_layer"):
        key = each["operator"], int(each["layer"]), each["quantity"], each["kind"]
        assert counts.pop(key) == int(each["neurons"])
    assert not counts


@pytest.mark.parametrize(("line", "criterion"), [*enumerate(["raw", "chance_corrected", "fdr"])])
def test_neurons_that_a_score_accepts_are_those_of_the_table(line: int, criterion: str):
    """A cell has their share of late neurons, and for scores that with relabelled operands."""
    [late] = table("late_layers")
    layers = range(int(late["first_layer"]), int(late["layers"]))
    cells = shown.rows(PAGE, "criterion |")[line][1:]
    for cell, operator in zip(cells, OPERATORS.values(), strict=True):
        keys = {"operator": operator, "criterion": criterion, "threshold": "0.6"}
        rows = [row("classified_share", layer=f"{layer}", **keys) for layer in layers]
        columns = ["share"] if criterion == "fdr" else ["share", "null_share"]
        check(cell, [fmean(float(values[column]) for values in rows) for column in columns])


def test_predicates_of_late_neurons_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | late neurons with a predicate")
    assert [sign for sign, *_ in rows] == list(OPERATORS)
    counts = ("discovered", "conjunctions")
    shares = ("explained", "sum_explained", "catalogue_explained")
    columns = [counts[0], *shares[::2], counts[1], *(f"conjunctions_{share}" for share in shares)]
    for sign, *cells in rows:
        measured = row("discovered_late", operator=OPERATORS[sign])
        for cell, column in zip(cells, columns, strict=True):
            check(cell, [int(measured[column]) if column in counts else float(measured[column])])


def test_predicates_of_single_neurons_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | layer | neuron | predicate")
    assert rows
    for sign, layer, neuron, predicate, *cells in rows:
        keys = {"layer": layer, "neuron": neuron, "discovered": "true"}
        measured = row("discovered_neurons", operator=OPERATORS[sign], **keys)
        assert predicate == f"`{measured['predicate']}`"
        columns = ("explained", "sum_explained", "catalogue_explained")
        for cell, column in zip(cells, columns, strict=True):
            check(cell, [float(measured[column])] if measured[column] else [])


def test_what_lenses_read_is_that_of_the_table():
    rows = shown.rows(PAGE, "layer | logit lens")
    layers = sorted({int(each["layer"]) for each in table("vote_agreement")})
    assert [int(layer) for layer, *_ in rows] == layers
    for layer, *cells in rows:
        votes = [row("vote_agreement", operator=each, layer=layer) for each in OPERATORS.values()]
        for cell, vote in zip(cells[:4], votes, strict=True):
            check(cell, [float(vote[name]) for name in ("correlation", "weighted_correlation")])
        for cell, name in zip(cells[4:], ("tuned_correlation", "ceiling"), strict=True):
            values = [float(vote[name]) for vote in votes]
            check(cell, [min(values), max(values)])


def test_explained_shares_of_helices_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | position | number | helix")
    assert len(rows) == 3 * len(OPERATORS)
    for sign, position, quantity, *cells in rows:
        keys = {"operator": OPERATORS[sign], "position": position, "quantity": quantity}
        keys |= {"layer": "22" if position == "last" else "1", "numbers_below": ""}
        theories = ["helix", "polynomial", "other_periods", "pca"]
        helix, polynomial, others, components = (
            row("helix_fits", theory=theory, **keys) for theory in theories
        )
        for cell, measured in zip(cells, (helix, polynomial), strict=False):
            check(cell, [float(measured[name]) for name in ("explained", "explained_new")])
        check(cells[2], [float(others["shuffled_most"])])
        check(cells[3], [float(components["explained"])])
        if position != "last":
            assert float(helix["shuffled_most"]) < 0.185


RESTORING = ("helix", "shuffled", "polynomial", "pca")


def test_what_helices_restore_is_that_of_the_table():
    table = pl.read_parquet(EXAMPLE / "tables/helix_effects.parquet")
    table = table.filter(pl.col("numbers_below").is_null(), position="op1", layer=4)
    rows = shown.rows(PAGE, "function of op1")
    for (_, *cells), theory in zip(rows, RESTORING, strict=True):
        for cell, operator in zip(cells, OPERATORS.values(), strict=True):
            [measured] = table.filter(operator=operator, theory=theory).rows(named=True)
            check(cell, [measured[name] for name in ("restored", "ci_low", "ci_high")])


def explained(theory: str, parameters: str = "", what: str = "accuracy") -> list[dict[str, str]]:
    """Return the rows of a theory in the order of the operators."""
    keys = {"theory": theory, "parameters": parameters, "what": what}
    return [row("theories", operator=operator, **keys) for operator in OPERATORS.values()]


def test_what_theories_explain_of_the_answer_is_that_of_the_table():
    majority, *rows = shown.rows(PAGE, "eight terms |")
    for (_, *cells), theory in zip(rows, ("bag", "waves", "helix"), strict=True):
        for cell, base, measured in zip(cells, majority[1:], explained(theory, "8"), strict=True):
            check(cell, [float(measured[name]) for name in ("value", "ci_low", "ci_high")])
            check(base, [float(measured["majority_accuracy"])])
    for begin, measured, column in (
        ("With one heuristic \\(16 bits\\), accuracy is", explained("bag", "1"), "value"),
        ("with one discovered predicate \\(19 to 24 bits\\)", explained("discovered"), "value"),
        ("is at most that of the most frequent digit:", explained("bag", "16"), "relabelled"),
    ):
        [text] = re.findall(rf"{begin}\s+([\d., and]+)", PAGE.replace("\n  ", " "))
        check(text, [float(each[column]) for each in measured])
    for text, theory, terms in (
        ("Two heuristics", "bag", "2"),
        ("16 Fourier terms", "waves", "16"),
    ):
        [ends] = re.findall(rf"{text}(?: explain)? ([\d.]+ to [\d.]+)", PAGE.replace("\n  ", " "))
        values = [float(each["value"]) for each in explained(theory, terms, "activation")]
        check(ends, [min(values), max(values)])


def kept(sign: str, criterion: str, name: str) -> dict[str, str]:
    """Return the row about a part of the late neurons, all others of which take their mean."""
    operator = OPERATORS[sign]
    return row("bag_alone", operator=operator, criterion=criterion, kept=name, ablation="mean")


def test_the_bag_alone_is_that_of_the_table():
    rows = shown.rows(PAGE, "kept |")
    parts = ["heuristic", "random", "matched", "rest", "random_rest", "matched_rest"]
    for column, sign in enumerate(OPERATORS, 1):
        majority, nothing, *others = (cells[column] for cells in rows)
        measured = kept(sign, "", "nothing")
        check(majority, [float(measured["majority_accuracy"])])
        check(nothing, [float(measured["accuracy"])])
        for cell, part in zip(others, parts, strict=True):
            measured = kept(sign, "label", part)
            interval = ["ci_low", "ci_high"] if "(" in cell else []
            check(cell, [float(measured[name]) for name in ("accuracy", *interval)])


def test_the_logit_difference_of_the_bag_alone_is_that_of_the_table():
    rows = shown.rows(PAGE, "logit difference with |")
    parts = ("heuristic", "matched", "random", "rest", "matched_rest", "random_rest")
    for (_, *cells), part in zip(rows, parts, strict=True):
        for cell, sign in zip(cells, OPERATORS, strict=True):
            measured = kept(sign, "label", part)
            columns = ("recovered", "recovered_low", "recovered_high")
            check(cell, [float(measured[name]) for name in columns])


def heuristics(criterion: str, ablation: str) -> pl.DataFrame:
    """Return ablations of heuristics with own and with other prompts."""
    table = pl.read_parquet(EXAMPLE / "tables/knockouts_by_heuristic.parquet")
    both = table.drop_nulls(["accuracy_associated", "accuracy_other"])
    return both.filter(criterion=criterion, ablation=ablation)


def test_ablated_labels_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator | label |")
    table = heuristics("label", "mean")
    assert rows
    for sign, label, neurons, own, other, *controls in rows:
        ablated = table.filter(operator=OPERATORS[sign], heuristic=label)
        [measured] = ablated.filter(arm="heuristic").rows(named=True)
        check(neurons, [measured["neurons"]])
        ends = [measured[f"associated_{end}"] for end in ("low", "high")]
        check(own, [measured["accuracy_associated"], *ends])
        check(other, [measured["accuracy_other"]])
        random = ablated.filter(arm="control").rows(named=True)
        values = [[each["accuracy_associated"], each["accuracy_other"]] for each in random]
        for cell, value in zip(controls, values[0] if values else [None, None], strict=True):
            check(cell, [value] if value is not None else [])
    control = table.filter(arm="control").select("operator", "heuristic")
    compared = table.join(control, on=["operator", "heuristic"], how="semi")
    means = {
        key: float(part["accuracy_associated"].mean())  # type: ignore[arg-type]
        for key, part in compared.group_by("arm", "operator")
    }
    [text] = re.findall(r"own prompts have an accuracy of(.+?)\(means", PAGE, re.DOTALL)
    arms = ("heuristic", "control")
    check(text, [means[arm, operator] for arm in arms for operator in OPERATORS.values()])


def test_heuristics_of_the_published_criterion_are_those_of_the_tables():
    sizes = heuristics("threshold", "zero").filter(arm="heuristic")["neurons"].to_list()
    assert f"{min(sizes):,} to {max(sizes):,} neurons" in PAGE
    [text] = re.findall(r"less that of the control, is\s+(.+?), with p-values", PAGE, re.DOTALL)
    published = {"criterion": "threshold", "ablation": "zero", "measure": "accuracy"}
    tests = [
        row("knockout_tests", operator=operator, **published)
        for operator in ("add", "subtract", "multiply")
    ]
    check(text, [float(test["difference"]) for test in tests])
    p_values = [float(test["p_value"]) for test in tests]
    [text] = re.findall(r"p-values (from.+?)\. Division has no control", PAGE)
    check(text, [min(p_values), max(p_values)])


def test_ablations_of_a_prompts_own_heuristics_are_those_of_the_table():
    rows = shown.rows(PAGE, "neurons | +")
    for (_, *cells), arm in zip(rows, ("heuristic", "control", "matched"), strict=True):
        for cell, operator in zip(cells, OPERATORS.values(), strict=True):
            keys = {"criterion": "threshold", "ablation": "zero", "neurons_per_layer": "100"}
            measured = row("knockouts_by_prompt", operator=operator, arm=arm, **keys)
            interval = ["ci_low", "ci_high"] if "(" in cell else []
            check(cell, [float(measured[name]) for name in ("accuracy", *interval)])


def test_what_failing_cells_have_is_that_of_the_tables():
    rows = shown.rows(PAGE, "operator | neurons of its")
    assert [sign for sign, *_ in rows] == list(OPERATORS)
    for sign, neurons, added, among_equal in rows:
        operator = OPERATORS[sign]
        measured = row("failure_tests", operator=operator, measure="associated_neurons")
        check(neurons, [float(measured["auc"])])
        columns = ("auc", "auc_ci_low", "auc_ci_high")
        for cell, name in ((added, "failure_tests"), (among_equal, "failure_controls")):
            measured = row(name, operator=operator, measure="answer_contribution")
            check(cell, [float(measured[column]) for column in columns])


KEPT_NEURONS = [("attribution", "10"), ("attribution", "50"), ("attribution", "400")]
KEPT_NEURONS += [("random", "400"), ("heads", "4864")]


def test_circuits_of_neurons_are_those_of_the_table():
    rows = shown.rows(PAGE, "kept of each late layer |")
    for (_, *cells), (circuit, k) in zip(rows, KEPT_NEURONS, strict=True):
        for cell, operator in zip(cells, OPERATORS.values(), strict=True):
            keys = {"operator": operator, "circuit": circuit, "neurons_per_layer": k}
            circuits = [each for each in table("faithfulness") if each.items() >= keys.items()]
            values = [fmean(float(each["faithfulness"]) for each in circuits)]
            if circuit != "random":
                [only] = circuits
                values += [float(only["ci_low"]), float(only["ci_high"])]
            check(cell, values)


def test_attribution_finds_the_neurons_of_the_largest_effect_as_the_table_says():
    operators = [each for each in table("attribution_recall") if each["k"] == "10"]
    assert len(operators) == len(OPERATORS)
    assert {(each["sampled_above"], each["recall"]) for each in operators} == {("0", "1.0")}
    sampled = sorted(int(each["sampled"]) for each in operators)
    assert f"{sampled[0]} to {sampled[-1]} (by operator) are not among" in PAGE
    assert {each["top"] for each in operators} == {"200"}
    for each in operators:
        assert shown.is_rounded("0.26", float(each["ci_low"]))


PAIRS = {
    "two operands": "arithmetic",
    "three operands": "three_operands",
    "two operands, in words": "number_words",
}


def test_shares_of_late_mlps_are_those_of_the_table():
    rows = shown.rows(PAGE, "prompts | operator varies")
    assert [name for name, *_ in rows] == list(PAIRS)
    for name, *cells in rows:
        conditions = ["operator_varies", "result_varies", "result_fixed"]
        for cell, condition in zip(cells, conditions, strict=True):
            keys = {"task": PAIRS[name], "condition": condition, "which": "answered"}
            measured = row("relative_importance", **keys)
            interval = [measured[end] for end in ("ci_low", "ci_high")]
            assert ("(" in cell) == all(interval)
            check(cell, [float(each) for each in (measured["importance"], *interval) if each])


STEERED = [  # place, arm and neurons of each row; None is not in the table
    ("carry", "separating", "50"),
    ("carry", "labelled", "50"),
    ("carry", "matched", "50"),
    ("carry", "random", "50"),
    ("asked", "separating", "50"),
    None,
    ("asked", "all", "38912"),
]


@pytest.mark.parametrize(("column", "operator"), [(1, "add"), (2, "subtract")])
def test_steering_is_that_of_the_table(column: int, operator: str):
    cells = [row[column] for row in shown.rows(PAGE, "neurons, of")]
    for cell, steered in zip(cells, STEERED, strict=True):
        if steered is None:
            continue
        place, arm, neurons = steered
        measured = row(
            "steering", operator=operator, place=place, arm=arm, target="other", neurons=neurons
        )
        interval = ["ci_low", "ci_high"] if "(" in cell else []
        check(cell, [float(measured[name]) for name in ("follows", *interval)])


def test_digits_that_share_neurons_are_those_of_the_table():
    rows = shown.rows(PAGE, "operator, measured digit")
    assert len(rows) == 4
    for name, other, matched, random in rows:
        sign, word = name.split(", ")
        digit = {"first": "1", "second": "2"}[word]
        keys = {"operator": OPERATORS[sign], "digit": digit}
        [measured] = [
            each
            for each in table("digit_circuits")
            if each["of_digit"] != digit and each.items() >= keys.items()
        ]
        check(other, [float(measured[name]) for name in ("share", "ci_low", "ci_high")])
        ends = ("matched_share", "matched_ci_low", "matched_ci_high")
        check(matched, [float(measured[name]) for name in ends])
        check(random, [float(measured["share_by_chance"])])


WORDS = {"reproduced": "yes", "not reproduced": "no", "not testable here": "open"}


def test_verdicts_are_those_of_the_table():
    rows = shown.rows(PAGE, "claim | what is measured")
    assert sorted(CLAIMS) == sorted(name.strip("`") for name, *_ in rows)
    for name, _, *cells in rows:
        verdicts = {each["operator"]: each for each in CLAIMS[name.strip("`")]}
        for cell, operator in zip(cells, OPERATORS.values(), strict=True):
            measured = verdicts.pop(operator, None)
            if not measured and operator == "add":
                measured = verdicts.pop("", None)  # of all operators
            word, _, number = cell.partition(", ")
            assert word == (WORDS[measured["verdict"]] if measured else "")
            check(number, [float(measured["measured"])] if measured and number else [])
            assert bool(number) == bool(measured and measured["measured"])
        assert not verdicts


CLAIMS: dict[str, list[dict[str, str]]] = {}
for each in table("claims") + table("digit_claims"):
    CLAIMS.setdefault(each["claim"], []).append(each)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Return the tables of the example, with the documented columns; columns it lacks are null."""
    documented, files = dictionary.tables(ROOT / "stages"), {}
    for file in (EXAMPLE / "tables").iterdir():
        if file.stem in documented:
            read = duckdb.read_csv(file, all_varchar=True) if file.suffix == ".csv" else None
            rows = read or duckdb.read_parquet(str(file))
            columns = [
                f"{name if name in rows.columns else 'null'}::{kind} as {name}"
                for name, (kind, _) in documented[file.stem].columns.items()
            ]
            files[file.stem] = [tmp_path_factory.mktemp("qwen") / f"{file.stem}.parquet"]
            frame = rows.select(", ".join(columns)).pl()
            frame = frame.with_columns(pl.lit("qwen").alias("subject"))
            frame.write_parquet(files[file.stem][0])
    return Database(files, threads=1)


# Their tables, discovered, neuron_effects and scores, have hundreds of thousands of rows.
UNSHIPPED = {
    "catalogue_misses_little",
    "top_neurons_are_classified",
    "top_neurons_are_classified_above_chance",
}


def test_the_catalogues_share_of_bits_is_that_of_the_table():
    for verdict in CLAIMS["catalogue_misses_little"]:
        measured = row("discovered_late", operator=verdict["operator"])
        assert float(measured["catalogue_gain_ratio"]) == pytest.approx(float(verdict["measured"]))


@pytest.mark.parametrize("name", sorted({*CLAIMS} - UNSHIPPED))
def test_verdicts_follow_from_the_tables(name: str, database: Database):
    [entry] = [entry for entry in ledger.listed() if entry["claim"] == name]
    operators = () if "study" in entry else tuple(OPERATORS.values())
    verdicts = ledger.judged(entry, database, "qwen", operators)
    assert len(verdicts) == len(CLAIMS[name])
    for verdict, kept in zip(verdicts, CLAIMS[name], strict=True):
        assert verdict["operator"] == (kept["operator"] or None)
        assert verdict["verdict"] == kept["verdict"]
        for column in ("measured", "ci_low", "ci_high"):
            assert (verdict[column] is None) == (not kept[column])
            if kept[column]:
                assert verdict[column] == pytest.approx(float(kept[column]), rel=1e-5, abs=1e-5)


def test_a_number_is_compared_by_the_digits_that_are_shown():
    assert shown.numbers("0.63 (0.4 to 0.8), 1,024.") == ["0.63", "0.4", "0.8", "1,024"]
    assert shown.numbers("−0.5, e2, 1e2, a1, v1.2") == ["−0.5"]
    assert shown.is_rounded("0.63", 0.6333)
    assert not shown.is_rounded("0.63", 0.6354)
    assert shown.is_rounded("1,024", 1024)
    assert not shown.is_rounded("0", 0.4)
    assert shown.lacking("24 of 100", [24, 100, 0.24]) == [0.24]
