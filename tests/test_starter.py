"""The READMEs show what the tables of data/starter hold, and these results are as good as planned.

Results that data/starter lacks are not compared: activations, direct logit attributions, and all
tables of other models than `abacus`. Of the synthetic model, it has only the calibrations of labels
and of discovered predicates.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.lib.sql.database import connect
from stages.site import gallery, pages
from tests import shown
from tests.conftest import bag_in
from tests.micro import ROOT
from tests.test_readme import QUERIES, README

# README and words of a query -> what data/starter lacks, so that the query prints something else
LACKING = {
    ("README.md", "from value_logits"): "value_logits",
    ("README.md", "from activations"): "activations",
    ("stages/bag/README.md", "'planted'"): "knockouts_by_heuristic of planted",
    ("stages/claims/README.md", "'planted'"): "claims of all models",
    ("stages/heuristics/README.md", "'abacus-digits-%'"): "labels of abacus-digits",
    ("stages/neurons/README.md", "from digit_circuits"): "digit_circuits",
    ("stages/trajectory/README.md", "from trajectory"): "trajectory",
}


def is_lacking(place: str, query: list[str]) -> bool:
    return any(place == file and words in query[0] for file, words in LACKING)


COMPARED = [query for query in QUERIES if not is_lacking(query[0], query[1])]


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table that is drawn with lines, with the names and types of columns."""
    rows = []
    for line in text.splitlines():
        if "│" in line:
            rows.append([cell.strip() for cell in line.split("│")[1:-1]])
    return rows


@pytest.mark.parametrize(("place", "query", "table"), COMPARED)
def test_a_query_prints_the_cells_that_are_shown(
    starter_project: Path, place: str, query: list[str], table: str
):
    done = bag_in(starter_project, *query)
    assert done.returncode == 0, done.stderr
    assert len(cells(table)) > 2
    assert cells(done.stdout) == cells(table)


@pytest.mark.parametrize(("file", "words"), LACKING)
def test_a_query_that_is_not_compared_lacks_its_rows(starter_project: Path, file: str, words: str):
    queries = [query for query in QUERIES if query[0] == file and words in query[1][0]]
    [(_, query, table)] = queries
    lacking = LACKING[file, words]
    done = bag_in(starter_project, *query)
    if " of " in lacking:
        assert cells(done.stdout)[:2] == cells(table)[:2]
        assert cells(done.stdout) != cells(table)
    else:
        assert f"There is no table {lacking} here." in done.stderr


def test_few_queries_are_not_compared():
    assert len(LACKING) <= 7
    assert len(COMPARED) >= 20


# a word of the item's title -> queries whose values the item shows
FINDINGS = {
    "heads": [
        """select circuits.heads, layers * model.heads, accuracy, random_accuracy
        from smallest_circuits as circuits join architecture as model using (subject)
        where subject = 'abacus' and operator = 'add' and target = 0.99"""
    ],
    "neurons": [
        """select neurons_per_layer, avg(accuracy) from faithfulness
        where subject = 'abacus' and operator = 'add' and experiment = 'neuron_circuit'
            and circuit in ('logit_effect', 'random') and neurons_per_layer = 100
        group by circuit, neurons_per_layer"""
    ],
    "heuristics": [
        """select count(distinct (layer, neuron)), any_value(layers * neurons)
        from labels join architecture using (subject)
        where subject = 'abacus' and operator = 'add'"""
    ],
    "bag": [
        """select neurons, max(accuracy) from bag_alone
        where subject = 'abacus' and operator = 'add' and criterion = 'fdr' and ablation = 'mean'
            and kept in ('heuristic', 'random', 'matched')
        group by neurons, kept = 'heuristic'""",
        """select min(accuracy) from bag_alone
        where subject = 'abacus' and operator = 'add' and criterion = 'fdr' and ablation = 'mean'
            and kept in ('rest', 'random_rest', 'matched_rest')
        group by kept = 'rest'""",
        """select (late_layers.layers - first_layer) * neurons
        from late_layers join architecture using (subject) where subject = 'abacus'""",
    ],
    "theories": [
        """select value, round(bits)::integer from theories
        where subject = 'abacus' and operator = 'add' and what = 'accuracy' and parameters = 1"""
    ],
    "predicates": [
        """select discovered from discovered_and_labels
        where subject = 'abacus' and operator = 'add' and layer is null""",
        """select measured, ci_low, ci_high from claims where subject = 'abacus'
            and claim = 'catalogue_explains_as_much_at_equal_bits' and operator = 'add'""",
    ],
    "steering": [
        """select neurons, follows from steering
        where subject = 'abacus' and operator = 'add' and place = 'ones' and target = 'other'
            and arm = 'separating' and neurons = 50"""
    ],
    "claims": [
        """select count(distinct claim), count(*), count(*) filter (verdict = 'reproduced'),
            count(*) filter (verdict = 'not reproduced'),
            count(*) filter (verdict = 'not testable here')
        from claims where subject = 'abacus'"""
    ],
}


@pytest.mark.parametrize("word", FINDINGS)
def test_the_findings_have_the_numbers_of_the_tables(starter_project: Path, word: str):
    findings = README.partition("\n## What it finds\n")[2].partition("\n## ")[0]
    text = shown.item(findings, word)
    with connect(starter_project / "data") as database:
        for query in FINDINGS[word]:
            rows = database.sql(query).fetchall()
            assert rows
            for row in rows:
                assert shown.lacking(text, list(row)) == [], text


def test_other_neurons_steer_nothing(starter_project: Path):
    """The findings say so in a word."""
    with connect(starter_project / "data") as database:
        query = """select max(follows) from steering where subject = 'abacus' and operator = 'add'
            and target = 'other' and arm in ('random', 'matched') and neurons = 50"""
        assert database.sql(query).fetchall() == [(0.0,)]


# data/starter has neither of these tables
PICTURES = [each for each in pages.gallery() if not re.search("activations|value_log", each.query)]


@pytest.mark.parametrize("query", PICTURES, ids=lambda query: Path(query.path).stem)
def test_the_gallery_shows_the_tables(
    starter_project: Path, query: pages.GalleryQuery, tmp_path: Path, monkeypatch
):
    (tmp_path / pages.GALLERY).mkdir(parents=True)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with connect(starter_project / "data") as database:
        gallery.draw(database, query)
    drawn, kept = (
        np.asarray(Image.open(root / query.picture), np.int16) for root in (tmp_path, ROOT)
    )
    assert drawn.shape == kept.shape
    assert abs(drawn - kept).mean() < 0.5, "`make site` draws it again"


def test_labels_are_right_on_the_synthetic_model(starter_project: Path):
    """The bars: heuristics that neurons implement exactly are labelled, and nothing else is."""
    with connect(starter_project / "data") as database:
        [setting] = database.sql("from label_setting").pl().rows(named=True)
    assert setting["exact_precision"] >= 0.98
    assert setting["exact_recall"] >= 0.97
    assert setting["noise_labelled"] <= setting["level"] == 0.05


def test_discovered_predicates_are_right_on_the_synthetic_model(starter_project: Path):
    """The same bars; of neurons without a heuristic, a few have a predicate by chance."""
    with connect(starter_project / "data") as database:
        rows = database.sql("from discovery_calibration").pl().rows_by_key("grade", named=True)
    [exact] = rows["exact"]
    assert exact["planted"] > 700
    assert exact["precision"] >= 0.98
    assert exact["recall"] >= 0.97
    [noise], [every] = rows["noise"], rows["all"]
    assert noise["neurons"] > 1000
    assert noise["discovered"] / every["discovered"] <= 0.05
