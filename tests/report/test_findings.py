"""Test the sentences that the page shows first: every number of them comes from a table."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stages.report import findings
from stages.report.findings import FAILS, HOLDS, PARTLY, UNTESTED
from stages.report.page.contents import contents
from stages.report.page.rows import database

OPERATORS = ("add", "multiply", "divide")
CHANGED = {"associated": -2.5, "other": -0.25}  # mean changes of the answer's logit


def kept(operator: str, part: str, accuracy: float, neurons: int) -> dict:
    """Return a row of bag_alone, with an interval of 0.1 around the accuracy."""
    return {
        "subject": "s", "operator": operator, "criterion": "fdr", "kept": part,
        "ablation": "mean", "neurons": neurons, "accuracy": accuracy, "ci_low": accuracy - 0.05,
        "ci_high": accuracy + 0.05, "majority_accuracy": 0.02,
    }  # fmt: skip


def ablated(operator: str, measure: str, p_value: float | None) -> dict:
    """Return a row of knockout_tests."""
    values = CHANGED if measure == "logit" else {"associated": 0.75, "other": 1.0}
    return {
        "subject": "s", "operator": operator, "criterion": "fdr", "ablation": "mean",
        "measure": measure, **values, "difference": 2.0, "p_value": p_value,
    }  # fmt: skip


def heuristic_ablated(
    operator: str, heuristic: str, majority: float, arms: tuple[str, ...] = ("heuristic", "control")
) -> list[dict]:
    """Return rows of knockouts_by_heuristic; a control's own prompts have another majority."""
    keys = {"subject": "s", "operator": operator, "criterion": "fdr", "ablation": "mean"}
    rows = []
    for arm in arms:
        accuracy = majority if arm == "heuristic" else 0.9
        values = {"dissociation": 0.5, "majority_accuracy_associated": accuracy}
        rows.append(keys | {"heuristic": heuristic, "arm": arm} | values)
    return rows


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return the findings of a model for whose operators the bag holds, fails and is untested."""
    alone = [
        kept("add", "heuristic", 0.8, 274), kept("add", "random", 0.16, 274),
        kept("add", "rest", 0.15, 750), kept("add", "random_rest", 0.75, 750),
        kept("multiply", "heuristic", 0.29, 143), kept("multiply", "random", 0.26, 143),
        kept("multiply", "rest", 0.99, 881), kept("multiply", "random_rest", 0.98, 881),
        # the stronger of both controls counts
        kept("add", "matched", 0.09, 274), kept("add", "matched_rest", 0.8, 750),
        kept("multiply", "matched", 0.27, 143), kept("multiply", "matched_rest", 0.97, 881),
    ]  # fmt: skip
    tests = [ablated("add", measure, 0.001) for measure in ("logit", "accuracy")]
    tests += [ablated("multiply", measure, 0.3) for measure in ("logit", "accuracy")]
    heuristics = [
        *heuristic_ablated("add", "a", 0.5), *heuristic_ablated("add", "b", 0.7),
        *heuristic_ablated("add", "c", 0.1, ("heuristic",)),
        *heuristic_ablated("multiply", "a", 0.3),
    ]  # fmt: skip
    folder = tmp_path / "data/s/bag"
    folder.mkdir(parents=True)
    tables = {"bag_alone": alone, "knockout_tests": tests, "knockouts_by_heuristic": heuristics}
    for name, rows in tables.items():
        table = pl.DataFrame(rows)
        number = pl.col("^accuracy|associated$") / 2
        zero = table.with_columns(number, ablation=pl.lit("zero"))
        threshold = table.with_columns(number, criterion=pl.lit("threshold"))
        pl.concat([zero, threshold, table]).write_parquet(folder / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    return findings.collected(database(tables, "s"), "s", OPERATORS)


# Rows of tables about two operators: the first column is the model, after it the named columns.
# "x" is another model, whose rows must not count.
TABLES = {
    "store/accuracy": """
        operator,split,accuracy,cells,majority_accuracy
        add,train,1.0,300,0.5
        add,held-out,0.6,100,0.55
        divide,train,0.5,10,0.2
        divide,held-out,0.25,10,0.1""",
    "circuit/circuit_heads": """
        operator,layer,head,reached
        add,0,0,true
        add,1,1,true
        divide,0,0,false""",
    "circuit/smallest_circuits": """
        operator,target,heads,accuracy,random_accuracy,majority_accuracy
        add,0.5,1,0.1,0.01,0.02
        add,0.8,2,0.9,0.05,0.88
        add,0.9,2,0.9,0.05,0.88""",
    "circuit/component_effects": """
        operator,component,layer,head
        add,head,0,0
        divide,head,0,0
        add,head,1,1
        add,head,1,2
        add,mlp,1,3""",
    "circuit/late_layers": """
        first_layer,layers,accuracy
        1,3,0.875""",
    "circuit/probes": """
        operator,layer,position,accuracy,majority_accuracy
        add,1,last,1.0,0.9
        divide,1,last,0.75,0.7
        multiply,1,last,,
        add,1,op2,1.0,0.1
        add,2,last,1.0,0.1""",
    "neurons/faithfulness": """
        operator,experiment,circuit,neurons_per_layer,accuracy,majority_accuracy
        add,neuron_circuit,logit_effect,5,0.3,0.02
        add,neuron_circuit,random,5,0.1,0.02
        add,neuron_circuit,logit_effect,10,0.9,0.02
        add,neuron_circuit,effect,10,1.0,0.02
        add,neuron_circuit,random,10,0.25,0.02
        add,neuron_circuit,random,10,0.35,0.02
        add,neuron_circuit,logit_effect,20,0.95,0.02
        add,neuron_circuit,random,20,0.8,0.02
        add,head_circuit,random,10,1.0,0.02""",
    "heuristics/labels": """
        operator,layer,neuron,heuristic
        add,0,1,a
        add,0,1,b
        add,1,1,a""",
    "heuristics/label_limits": """
        operator,draws,needed,at_floor,too_few_draws
        add,120,254,300,false
        divide,120,254,3,false""",
    "neurons/neuron_variances": """
        operator,layer,neuron
        add,0,1
        add,1,1
        add,1,2
        divide,0,1
        divide,1,1
        divide,1,2""",
    "theories/theories": """
        operator,theory,parameters,what,value,relabelled,bits,majority_accuracy
        add,mean,0,accuracy,0.0,,0,0.1
        add,bag,1,accuracy,0.6,,12,0.1
        add,bag,2,accuracy,0.75,,24,0.1
        add,bag,2,restored,0.1,,24,
        add,itself,,restored,1.0,,,
        divide,itself,,restored,1.0,,,
        multiply,itself,,restored,,,,
        add,bag,4,accuracy,0.99,0.2,48,0.1
        add,waves,2,accuracy,0.5,,30,0.1
        add,helix,2,accuracy,0.25,,20,0.1
        add,labels,,accuracy,0.55,0.15,21,0.1
        add,discovered,,accuracy,0.9,0.2,35,0.1
        add,itself,,accuracy,1.0,,,0.1
        divide,bag,1,accuracy,0.4,,10,0.6
        divide,bag,2,accuracy,0.5,,20,0.6
        divide,itself,,accuracy,0.9,,,0.6
        multiply,bag,1,accuracy,0.01,,11,0.9
        multiply,bag,2,accuracy,0.05,,22,0.9
        multiply,itself,,accuracy,1.0,,,0.9""",
    "mediation/relative_importance": """
        task,condition,operator,which,importance,without_effect,ci_low
        arithmetic,result_varies,all,all,0.75,0.1,0.6
        arithmetic,result_fixed,all,all,0.25,0.2,
        arithmetic,result_varies,all,answered,0.8,0.3,0.6
        arithmetic,result_varies,add,all,0.9,0.3,0.6
        factual,result_varies,all,all,0.85,0.3,0.6""",
    "heuristics/discovered": """
        operator,layer,neuron,q_value,discovered
        add,0,0,0.01,true
        add,0,1,0.0402,true
        add,0,2,0.3,false
        add,0,3,,false
        divide,0,0,0.2,false""",
    "heuristics/discovered_and_labels": """
        operator,layer,neurons,discovered,explained,catalogue_explained
        add,,4,2,0.5,0.25
        add,0,4,1,0.9,0.9
        divide,,4,0,0.0,0.2""",
    "neurons/vote_agreement": """
        operator,layer,neurons,correlation,chance_correlation,ceiling
        add,0,100,0.2,-0.004,0.9
        add,1,300,0.6,0.0,0.95
        divide,1,50,0.25,0.1,0.8""",
    "bag/steering": """
        operator,place,arm,target,neurons,follows
        add,ones,labelled,other,50,0.75
        add,ones,separating,other,50,0.25
        add,ones,separating,other,200,0.9
        add,ones,separating,own,50,0.05
        add,ones,random,other,50,0.0
        add,ones,random,other,200,0.5
        add,ones,random,own,50,0.1
        add,ones,matched,other,50,0.05
        add,ones,matched,own,50,0.3
        add,carry,separating,other,50,0.6
        add,carry,random,other,50,0.15
        add,carry,matched,other,50,0.1""",
    "claims/claims": """
        claim,operator,source,statement,verdict
        c,add,"study, Sec. 1",A statement.,reproduced
        c,divide,"study, Sec. 1",A statement.,not testable here
        d,,study,Another statement.,not reproduced""",
}
SENTENCES = {
    "Accuracy": "The model predicts the answer correctly in 0.38 (division) to 0.90 (addition) of "
    "all cells (most frequent answer: 0.15 to 0.51), and in 0.25 to 0.60 of held-out cells (most "
    "frequent answer: 0.10 to 0.55).",
    "Heads": "2 of 3 attention heads keep an accuracy of 0.90, equally many random heads 0.05 "
    "(most frequent answer: 0.88). For division, no fewer heads than all are faithful enough.",
    "Late layers": "A linear probe reads the answer from layer 1 on, with an accuracy of 0.88 "
    "(most frequent answer: 0.80). So layers 1 to 2 are late.",
    "Neurons": "With only the circuit's heads, the 10 neurons of largest logit effect per late "
    "layer keep an accuracy of 0.90, equally many random neurons 0.30 (most frequent answer: "
    "0.02). Averaged over operators, no other number of neurons differs more.",
    "Heuristics": "0 to 2 of 3 neurons have a label: a heuristic describes them beyond chance.",
    "Theories": "Accuracy with simple formulas in place of each late neuron: 2 heuristics 0.50 to "
    "0.75, 2 Fourier components 0.50, 2 terms of a helix 0.25, its mean alone 0.00 (most frequent "
    "answer: 0.10 to 0.60). For multiplication, ablating the late neurons does not clearly lower "
    "the answer's logit.",
    "Mediation": "At the last position, the late half of the MLPs has 0.75 when the result varies "
    "and 0.25 when both results are equal, as a share of the effects of all MLPs at all positions. "
    "If all effects were equal, it would be 0.10 to 0.20.",
    "Discovered predicates": "A search without the catalogue finds a predicate for 0 to 2 of 4 "
    "neurons, at a false discovery rate of at most 0.041. Predicates explain 0.00 (division) to "
    "0.50 (addition) of the held-out variance, the best heuristics of the catalogue 0.20 to 0.25.",
    "Promoted numbers": "What a shifted neuron changes after all later layers correlates by 0.25 "
    "(division) to 0.50 (addition) with its direct logit attribution, by 0.00 to 0.10 with that of "
    "another neuron of its layer. A perfect attribution would have 0.80 to 0.94 on so few prompts.",
    "Description length": "Accuracy with a description in place of each late neuron: its labels of "
    "21 bits 0.55 (another neuron's 0.15), its discovered predicate of 35 bits 0.90 (another "
    "neuron's 0.20), one heuristic of 10 to 12 bits 0.40 to 0.60 (most frequent answer: 0.10 to "
    "0.60).",
    "Steering": "With the 50 late neurons that a digit or carry explains best at their mean for "
    "another digit or carry, this share of predictions follows: ones digit 0.25, carry or borrow "
    "0.60. With as many others, random or of the nearest variance, it is 0.05 to 0.15.",
    "Claims": "2 published statements have 3 verdicts, most of them by operator: 1 reproduced, 1 "
    "not reproduced, 1 not testable on this model.",
}


def test_every_query_gives_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TABLES.items():
        rows = pl.read_csv(text.replace(" " * 8, "").strip().encode())
        other = rows.with_columns(pl.col(pl.Float64) / 2).head(1)
        path = tmp_path / f"data/s/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        both = [rows.with_columns(subject=pl.lit("s")), other.with_columns(subject=pl.lit("x"))]
        pl.concat(both).write_parquet(path)
    data = database([Path(name).name for name in TABLES], "s")
    shown = findings.collected(data, "s", ("divide", "add"))
    assert [row["operator"] for row in shown["charts"]["heads"]] == ["divide", "add"]
    texts = {finding["title"]: finding["text"] for finding in shown["parts"][""]["findings"]}
    assert texts == SENTENCES
    assert shown["tested"]["divide"]["verdict"] == FAILS  # it has no label
    assert shown["parts"]["divide"]["reasons"][0].startswith("No neuron has a label")
    assert shown["tested"]["add"]["verdict"] == UNTESTED
    [first, second] = shown["claims"]
    assert first["verdicts"] == {"add": "reproduced", "divide": "not testable here"}
    assert second["verdicts"] == {"": "not reproduced"}


def test_ratios_of_noise_are_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = [("itself", None, "restored", None)]
    for number in (1, 2):
        rows.append(("bag", number, "accuracy", 0.7))
    columns = ["theory", "parameters", "what", "value"]
    bits = {"relabelled": 0.1, "bits": 12.0, "majority_accuracy": 0.1}
    theories = pl.DataFrame(rows, columns, orient="row").with_columns(**literals(bits))
    importance = {"task": "arithmetic", "operator": "all", "which": "all", "without_effect": 0.2}
    fixed = {"condition": ["result_varies", "result_fixed"], "importance": [3.0, 0.4]}
    relative = pl.DataFrame(fixed | {"ci_low": [None, 0.3]})
    for path, table in (
        ("theories/theories", theories.with_columns(operator=pl.lit("add"))),
        ("mediation/relative_importance", relative.with_columns(**literals(importance))),
    ):
        file = tmp_path / f"data/s/{path}.parquet"
        file.parent.mkdir(parents=True)
        table.with_columns(subject=pl.lit("s")).write_parquet(file)
    every = findings.results(database(["theories", "relative_importance"], "s"), "s", ("add",))
    assert [finding.text for finding in findings.findings(every)] == [
        "No theory of late neurons is compared: ablating the late neurons does not clearly lower "
        "the answer's logit.",
        "The effects of MLPs are too small, or the pairs too few, to compare layers.",
    ]


def literals(values: dict[str, Any]) -> dict[str, pl.Expr]:
    return {name: pl.lit(value) for name, value in values.items()}


def test_without_a_late_layer_no_probe_is_said_to_fail_everywhere():
    """A probe may read the answer before the last layer."""
    kinds = {"operator": pl.String, "first_layer": pl.Int16, "layers": pl.Int16}
    known = dict.fromkeys(("value", "majority"), pl.Float64)
    rows = pl.DataFrame([(None, None, 3, None, None)], kinds | known, orient="row")
    texts = []
    for is_probed in (True, False):
        [finding] = findings.findings({"late": rows.with_columns(is_probed=pl.lit(is_probed))})
        texts.append(finding.text)
    assert texts == [
        "No linear probe reads the answer well enough after the last layer, so no layer is late.",
        "Too few prompts are answered correctly for a linear probe, so no layer is late.",
    ]


def test_too_few_draws_are_no_evidence_against_heuristics():
    columns = {"value": 0, "total": 116_736, "draws": 100_000, "needed": 24, "at_floor": 23}
    labels = pl.DataFrame([{"operator": "add", "too_few_draws": True} | columns])
    why = (
        "For addition, the permutation tests had too few draws for any label: 23 neurons are "
        "beyond all 100,000 draws, and 24 are needed."
    )
    assert findings.tested({"labels": labels}, "add")["verdict"] == UNTESTED
    assert findings.reasons({"labels": labels}) == [why]
    [finding] = findings.findings({"labels": labels})
    assert finding.text == f"None of 116,736 neurons has a label. {why}"
    enough = labels.with_columns(too_few_draws=pl.lit(False))
    assert findings.tested({"labels": enough}, "add")["verdict"] == FAILS
    assert findings.reasons({"labels": enough})[0].startswith("No neuron has a label")


def test_attribution_ranks_neurons_where_few_are_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    rows = []
    for circuit, accuracies in {
        "logit_effect": {10: 0.5},
        "attribution": {10: 0.4, 50: 0.7},
        "random": {10: 0.1, 50: 0.2},
    }.items():
        rows += [(circuit, number, accuracy) for number, accuracy in accuracies.items()]
    table = pl.DataFrame(rows, ["circuit", "neurons_per_layer", "accuracy"], orient="row")
    same = {"subject": "s", "operator": "add", "experiment": "neuron_circuit"}
    path = tmp_path / "data/s/neurons/faithfulness.parquet"
    path.parent.mkdir(parents=True)
    table.with_columns(**literals(same), majority_accuracy=pl.lit(0.15)).write_parquet(path)
    every = findings.results(database(["faithfulness"], "s"), "s", ("add",))
    [finding] = findings.findings(every)
    assert finding.text.startswith(
        "With only the circuit's heads, the 50 neurons of largest attribution per late layer keep "
        "an accuracy of 0.70, equally many random neurons 0.20"
    )


def test_without_a_discovered_predicate_no_rate_is_quoted():
    columns = {"operator": "add", "value": 0, "total": 1536, "control": None, "explained": None}
    [finding] = findings.findings({"discovered": pl.DataFrame([columns])})
    assert finding.text == (
        "A search without the catalogue finds no predicate for any of 1,536 neurons."
    )


def test_tested_neurons_count_although_none_has_a_label():
    rows = pl.DataFrame(kept("add", "heuristic", 0.8, 274)).rename({"ci_low": "low"})
    controls = pl.DataFrame(
        {"control_high": [0.2], "rest_high": [0.3], "others_low": [0.6], "majority": [0.1]}
    )
    labels = pl.DataFrame(
        {"operator": ["add"], "value": [0], "total": [3], "too_few_draws": [False]}
    )
    every = {"alone": pl.concat([rows, controls], how="horizontal"), "labels": labels}
    assert findings.tested(every, "add") == {
        "enough": True, "needed": True, "selective": None, "verdict": PARTLY,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("low", "control_high", "majority", "outcome"),
    [
        (0.75, 0.7, 0.5, True),
        (0.75, 0.8, 0.5, False),
        (0.75, 0.7, 0.8, False),
        (0.75, None, 0.5, None),
        (None, 0.7, 0.5, None),
    ],
)
def test_neurons_that_are_enough_are_compared_with_every_control(
    low: float, control_high: float, majority: float, outcome: bool | None
):
    row = {"low": low, "control_high": control_high, "majority": majority}
    assert findings.is_enough(row) is outcome


@pytest.mark.parametrize(
    ("rest_high", "others_low", "outcome"),
    [(0.2, 0.3, True), (0.3, 0.2, False), (0.2, None, None), (None, 0.3, None)],
)
def test_neurons_are_needed_if_as_many_random_ones_are_not(
    rest_high: float, others_low: float, outcome: bool | None
):
    assert findings.is_needed({"rest_high": rest_high, "others_low": others_low}) is outcome


@pytest.mark.parametrize(
    ("p_value", "difference", "associated", "other", "outcome"),
    [
        (0.01, 2.0, -2.5, -0.5, True),
        (0.01, 2.0, -0.5, -0.5, False),  # not more on its own prompts
        (0.01, 2.0, 0.25, 0.5, False),  # does not hurt
        (0.01, -2.0, -2.5, -0.5, False),  # other neurons hurt more
        (0.06, 2.0, -2.5, -0.5, False),
        (None, 2.0, -2.5, -0.5, None),
    ],
)
def test_an_ablation_is_selective_if_it_hurts_the_own_prompts_most(
    p_value: float, difference: float, associated: float, other: float, outcome: bool | None
):
    row = {"p_value": p_value, "difference": difference, "associated": associated, "other": other}
    assert findings.is_selective(row) is outcome


def test_the_bag_holds_if_it_is_enough_needed_and_selective(shown: dict):
    verdicts = {operator: shown["tested"][operator]["verdict"] for operator in OPERATORS}
    assert verdicts == {"add": HOLDS, "multiply": FAILS, "divide": UNTESTED}
    assert shown["tested"]["add"] == dict.fromkeys(findings.PREDICTIONS, True) | {"verdict": HOLDS}
    answers = [shown["parts"][operator]["answer"] for operator in ("", "add", "multiply")]
    assert answers == ["In part.", "Yes.", "No."]
    assert findings.verdict([True, None, True], False) == PARTLY
    assert findings.verdict([True, True, True], True) == FAILS  # no neuron has a label


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNTESTED], PARTLY),
        ([HOLDS, FAILS], PARTLY),
        ([FAILS, PARTLY], PARTLY),
        ([PARTLY, UNTESTED], PARTLY),
        ([FAILS, UNTESTED], FAILS),
        ([UNTESTED], UNTESTED),
    ],
)
def test_the_bag_holds_only_if_it_holds_for_every_operator(verdicts: list[str], together: str):
    assert findings.overall(verdicts) == together


def test_sentences_have_the_numbers_of_the_tables(shown: dict):
    reasons = " ".join(shown["parts"][""]["reasons"])
    assert (
        "alone, keep 0.80 of the correct answers, as many other neurons 0.16 (most frequent "
        "answer: 0.02)." in reasons
    )
    assert (
        "They keep 0.29 for multiplication, not clearly more than both other neurons (0.27) and "
        "the most frequent answer (0.02)." in reasons
    )
    assert (
        "Without these neurons, 0.15 of the answers stay correct, without as many other neurons "
        "0.75. For multiplication, 0.99 stay correct without them, not clearly fewer than "
        "without other ones (0.97)." in reasons
    )
    assert reasons.endswith(
        "For multiplication, ablating one heuristic does not lower the answer's logit "
        "significantly more on the heuristic's own prompts."
    )
    texts = {finding["title"]: finding["text"] for finding in shown["parts"]["add"]["findings"]}
    assert texts.keys() == {"The bag alone", "Ablation"}
    assert texts["The bag alone"].startswith("274 late neurons have a heuristic. They alone keep")
    assert texts["The bag alone"].endswith("but them 0.15 (most frequent answer: 0.02).")
    assert "by -2.50 on its own prompts, and by -0.25 on other prompts" in texts["Ablation"]
    assert texts["Ablation"].endswith("0.75 stay correct (most frequent answer: 0.60).")
    both = {finding["title"]: finding["text"] for finding in shown["parts"][""]["findings"]}
    assert "0.29 (multiplication) to 0.80 (addition)" in both["The bag alone"]
    assert shown["parts"]["divide"]["reasons"] == [
        "No table tests the bag of heuristics on this model."
    ]


def test_findings_read_what_the_page_reads_and_link_to_its_items():
    own = contents().only(study=False)
    tables = {name for names, _ in findings.QUERIES.values() for name in names}
    assert tables <= {*own.tables(shared=False), "label_limits", "neuron_variances"}
    assert {item for item, *_ in findings.SENTENCES.values()} <= {item.id for item in own.items()}
    assert findings.SENTENCES.keys() == findings.QUERIES.keys()


def test_shares_next_to_0_and_1_have_three_digits():
    assert list(map(findings.share, (0.0, 0.001, 0.5, 0.9988, 1.0))) == [
        "0.00", "0.001", "0.50", "0.999", "1.00",
    ]  # fmt: skip
