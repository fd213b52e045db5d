"""Test the sentences that the page shows first: every number of them comes from a table."""

from pathlib import Path

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


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return the findings of a model for whose operators the bag holds, fails and is untested."""
    alone = [
        kept("add", "heuristic", 0.8, 274), kept("add", "random", 0.16, 274),
        kept("add", "rest", 0.15, 750), kept("multiply", "heuristic", 0.29, 143),
        kept("multiply", "random", 0.26, 143), kept("multiply", "rest", 0.99, 881),
    ]  # fmt: skip
    tests = [ablated("add", measure, 0.001) for measure in ("logit", "accuracy")]
    tests += [ablated("multiply", measure, 0.3) for measure in ("logit", "accuracy")]
    folder = tmp_path / "data/s/bag"
    folder.mkdir(parents=True)
    pl.DataFrame(alone).write_parquet(folder / "bag_alone.parquet")
    pl.DataFrame(tests).write_parquet(folder / "knockout_tests.parquet")
    monkeypatch.chdir(tmp_path)
    return findings.collected(database(["bag_alone", "knockout_tests"], "s"), "s", OPERATORS)


def test_the_bag_holds_if_it_is_enough_needed_and_selective(shown: dict):
    verdicts = {operator: shown["tested"][operator]["verdict"] for operator in OPERATORS}
    assert verdicts == {"add": HOLDS, "multiply": FAILS, "divide": UNTESTED}
    assert shown["tested"]["add"] == dict.fromkeys(findings.PREDICTIONS, True) | {"verdict": HOLDS}
    answers = [shown["parts"][operator]["answer"] for operator in ("", "add", "multiply")]
    assert answers == ["In part.", "Yes.", "No."]
    assert findings.verdict([True, None, True], False) == PARTLY
    assert findings.verdict([True, True, True], True) == FAILS  # no neuron has a label


def test_sentences_have_the_numbers_of_the_tables(shown: dict):
    reasons = " ".join(shown["parts"][""]["reasons"])
    assert "alone, keep 0.80 of the correct answers, equally many random neurons 0.16." in reasons
    assert "They keep 0.29 for multiplication, not clearly more than random neurons" in reasons
    texts = {finding["title"]: finding["text"] for finding in shown["parts"]["add"]["findings"]}
    assert texts.keys() == {"The bag alone", "Ablation"}
    assert texts["The bag alone"].startswith("274 late neurons have a heuristic. They alone keep")
    assert "by -2.50 on its own prompts, and by -0.25 on other prompts" in texts["Ablation"]
    both = {finding["title"]: finding["text"] for finding in shown["parts"][""]["findings"]}
    assert "0.29 (multiplication) to 0.80 (addition)" in both["The bag alone"]
    assert shown["parts"]["divide"]["reasons"] == [
        "No table tests the bag of heuristics on this model."
    ]


def test_findings_read_what_the_page_reads_and_link_to_its_items():
    own = contents().only(study=False)
    tables = {name for names, _ in findings.QUERIES.values() for name in names}
    assert tables <= {*own.tables(shared=False), "neuron_variances"}
    assert {item for item, *_ in findings.SENTENCES.values()} <= {item.id for item in own.items()}
    assert findings.SENTENCES.keys() == findings.QUERIES.keys()


def test_shares_next_to_0_and_1_have_three_digits():
    assert list(map(findings.share, (0.0, 0.001, 0.5, 0.9988, 1.0))) == [
        "0.00", "0.001", "0.50", "0.999", "1.00",
    ]  # fmt: skip
