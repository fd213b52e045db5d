"""Claims: each statement is checked by its own query, or is not testable."""

import json
import re
from itertools import pairwise
from pathlib import Path

import duckdb
import polars as pl
import pytest
import yaml

from stages.claims import ledger, study_claims
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database, connect
from tests.conftest import bag_in, run_in

LISTED = ledger.listed()
STATEMENTS = pl.DataFrame(LISTED, schema=dict.fromkeys(("claim", "source", "study"), pl.String))
KEYS = {"claim", "source", "statement", "published"}  # of every statement
PLACES = {  # of each study that a statement may be from, as its published text numbers them
    "heuristics": [
        "Sec. 2",
        "Sec. 3",
        "Sec. 4.1",
        "Sec. 4.2",
        "Sec. 4.3",
        "Sec. 5",
        "App. B.1",
        "App. B.2",
        "App. D",
        "App. J",
        "Fig. 3",
        "Fig. 4b",
        "Fig. 7",
        "Fig. 8",
        "Fig. 9",
        "Fig. 10a",
        "Fig. 10b",
        "Fig. 10c",
        "Fig. 11",
        "Fig. 12",
        "Fig. 14",
        "Fig. 15",
        "Table 3",
    ],
    "mediation": ["Sec. 3", "Sec. 4", "Sec. 5", "Fig. 3"],
    "trigonometry": ["Sec. 4", "Sec. 5"],
    "fourier": ["whole"],
    "digits": ["whole"],
    "manipulation": ["whole"],
}
SECTIONS = {  # of the heuristics study: where each of its figures belongs
    "2": "Sec. 2",
    "3": "Sec. 2",
    "4": "Sec. 3",
    "7": "Sec. 4.2",
    "8": "Sec. 4.2",
    "9": "Sec. 4.3",
    "10": "Sec. 5",
    "11": "Sec. 2",
    "12": "App. B.1",
    "14": "App. B.2",
    "15": "App. D",
}
# What the study itself does not state.
OURS = ["control of ours", "extension of ours", "asked by reviewers"]
VERDICTS = {"reproduced", "not reproduced", "not testable here"}


def entry(query: str | None, **published: float | str) -> dict:
    measured = {"query": query} if query else {"why": "needs what nobody has"}
    return {
        "claim": "c",
        "source": "heuristics, Sec. 0",
        "statement": "so it is",
        "published": {"of": "Llama", **published},
        **measured,
    }


def judged(query: str | None, **published: float) -> list[tuple]:
    rows = ledger.judged(entry(query, **published), Database({}), "s")
    columns = ["operator", "published", "measured", "ci_low", "ci_high", "verdict"]
    return pl.DataFrame(rows, schema=ledger.SCHEMA).select(columns).rows()


MEASURED = """
    select {} as operator, {} as measured, null as low, null as high, true as holds
    where $subject = 's'
"""


def test_what_holds_is_reproduced_and_what_nobody_measured_is_not_testable():
    query = """
        select * from (values
            ('divide', 2.0, 1.0, 3.0, false),
            ('add', 0.5, null, null, true),
            ('multiply', null, null, null, null)
        ) as v(operator, measured, low, high, holds) where $subject = 's'
    """
    assert judged(query, add=0.9, subtract=0.8) == [
        ("add", 0.9, 0.5, None, None, "reproduced"),
        ("subtract", 0.8, None, None, None, "not testable here"),
        ("multiply", None, None, None, None, "not testable here"),
        ("divide", None, 2.0, 1.0, 3.0, "not reproduced"),
    ]
    assert judged(MEASURED.format("null", "1"), all=0.4) == [
        (None, 0.4, 1, None, None, "reproduced")
    ]
    assert judged(None, all=0.4) == [(None, 0.4, None, None, None, "not testable here")]
    assert judged(None, add=1, divide=2) == [
        ("add", 1, None, None, None, "not testable here"),
        ("divide", 2, None, None, None, "not testable here"),
    ]


def test_operators_without_rows_are_not_testable():
    claim = entry(MEASURED.format("'divide'", "1"))
    operators, verdicts = ["add", "subtract", "divide"], []
    for only in ({}, {"only": ["add", "divide"]}):
        rows = ledger.judged(claim | only, Database({}), "s", operators)
        verdicts.append({row["operator"]: row["verdict"] for row in rows})
    untested = {"add": "not testable here", "subtract": "not testable here"}
    assert verdicts[0] == untested | {"divide": "reproduced"}
    assert verdicts[1] == {"add": "not testable here", "divide": "reproduced"}
    about_all = entry(MEASURED.format("null", "1"))
    [row] = ledger.judged(about_all, Database({}), "s", operators)
    assert row["operator"] is None


def test_two_rows_of_one_operator_are_a_mistake():
    with pytest.raises(ValueError, match="claim c gives two rows"):
        judged(MEASURED.format("'add'", "unnest([1, 2])"))


def test_every_statement_has_a_place_a_model_and_a_query_or_a_reason():
    assert STATEMENTS["claim"].n_unique() == len(LISTED)
    for claim in LISTED:
        assert KEYS <= claim.keys() <= {*KEYS, "only", "study", "query", "why"}
        assert ("query" in claim) != ("why" in claim)
        assert claim.get("study") in (None, "training", "digits")
        assert claim["published"].keys() <= {"of", "all", "add", "subtract", "multiply", "divide"}


@pytest.mark.parametrize("claim", LISTED, ids=lambda claim: claim["claim"])
def test_a_statement_is_from_a_place_of_its_study_and_its_numbers_are_of_a_model(claim: dict):
    study, *places = claim["source"].split(", ")
    assert places
    assert set(places) <= {*PLACES[study], *OURS}
    published = dict(claim["published"])
    assert published.pop("of")
    for number in published.values():
        assert 0 <= number <= 1
    if OURS[0] in places or OURS[1] in places:
        assert not published
        assert "unpublished" in claim["statement"]


def limits(query: str) -> set[str]:
    """Return the numbers with a decimal point that the column `holds` of a query compares with."""
    [(tree,)] = duckdb.sql("select json_serialize_sql($1)", params=[query]).fetchall()
    [statement] = json.loads(tree)["statements"]
    numbers: set[str] = set()
    for column in statement["node"]["select_list"]:
        if column["alias"] == "holds":
            numbers.update(re.findall(r'"NUMERIC", "text": "([^"]+)"', json.dumps(column)))
    return numbers


def test_a_statement_names_the_value_from_which_it_holds():
    """`holds` compares with it."""
    words = {"0.5": "half", "0.1": "a tenth"}
    checked = 0
    for claim in filter(lambda claim: "query" in claim, LISTED):
        for number in limits(claim["query"]):
            checked += 1
            is_named = (
                number in claim["statement"] or words.get(number, number) in claim["statement"]
            )
            assert is_named, (claim["claim"], number)
    assert checked > 20


def test_a_figure_is_named_with_its_section():
    pairs: list[tuple[str, str]] = []
    for source in STATEMENTS["source"]:
        study, *places = source.split(", ")
        if study == "heuristics":
            pairs += pairwise(places)
    for kind in ("sql", "py", "md", "yaml"):
        for file in ledger.STAGES.rglob(f"*.{kind}"):
            pairs += re.findall(r"((?:Sec|App)\. [\w.]+), (Fig\. \w+)", file.read_text())
    checked = 0
    for section, figure in pairs:
        number = re.sub(r"\D", "", figure)
        is_of_mediation = (section, number) == ("Sec. 4", "3")
        if figure.startswith("Fig.") and not is_of_mediation:
            assert section == SECTIONS[number]
            checked += 1
    assert checked > 20


def test_every_chapters_statements_are_listed_and_every_key_is_explained():
    files = list(ledger.STAGES.glob("*/claims.yaml"))
    counts = [len(yaml.safe_load(file.read_text())) for file in files]
    assert sum(counts) == len(LISTED) > len(files) > 1
    explained = re.findall(
        r"^\| ([\w, ]+) \|", (ledger.STAGES / "claims/README.md").read_text(), re.MULTILINE
    )
    keys = ["key", "claim, source, statement", "published", "query", "only", "study", "why"]
    assert explained == keys


def test_a_query_asks_the_tables_for_what_the_claim_says(micro: Path):
    """Check some verdicts of each kind again, with the printed query and the console."""
    database = connect(micro / "data")
    table, of_several = database.sql("from claims").pl(), database.sql("from study_claims").pl()
    of_one_model = STATEMENTS.filter(pl.col("study").is_null())
    assert set(table["claim"]) == set(of_one_model["claim"])
    assert set(of_several["claim"]) == set(STATEMENTS.filter(study="training")["claim"])
    assert set(of_several["subject"]) == {"abacus"}
    table = pl.concat([table, of_several])
    assert set(table["verdict"]) == VERDICTS
    assert set(table.filter(pl.col("measured").is_null())["verdict"]) <= {
        "not testable here",
        "not reproduced",
    }
    compared = 0
    for number, claim in enumerate(LISTED[::5]):
        if "query" in claim:
            arguments = ("--json", "-p", "subject=planted", claim["query"])
            rows = table.filter(subject="planted", claim=claim["claim"]).filter(
                pl.col("measured").is_not_null()
            )
            printed = json.loads(
                (bag_in(micro, *arguments) if number else run_in(micro, "bag", *arguments)).stdout
            )
            again = {
                row["operator"]: row["measured"] for row in printed if row["measured"] is not None
            }
            assert dict(rows.select("operator", "measured").iter_rows()) == pytest.approx(again)
            compared += len(again)
    assert compared > 10


def test_verdicts_are_of_every_statement_and_subject(micro: Path):
    database = connect(micro / "data")
    verdicts = database.sql("from verdicts").pl()
    listed: set[tuple] = set()
    for column, verdict in (
        ("reproduced", "reproduced"),
        ("not_reproduced", "not reproduced"),
        ("not_testable", "not testable here"),
    ):
        subjects = verdicts.explode(column).drop_nulls(column)
        listed |= set(subjects.select(column, "claim", "operator", verdict=pl.lit(verdict)).rows())
    columns = "select subject, claim, operator, verdict from"
    rows = f"{columns} claims union all {columns} study_claims"
    assert listed == set(database.sql(rows).pl().rows())


def test_verdicts_put_all_subjects_side_by_side(tmp_path: Path):
    rows = [
        ("b", "c1", "add", 1.0, "reproduced"),
        ("a", "c1", "add", 3.0, "reproduced"),
        ("d", "c1", "add", 0.5, "not reproduced"),
        ("a", "c1", None, None, "not testable here"),
        ("b", "c1", None, 2.0, "not reproduced"),
        ("a", "c2", "add", 4.0, "reproduced"),
        ("b", "c2", "add", 5.0, "reproduced"),
    ]
    schema = {
        "subject": pl.String,
        "claim": pl.String,
        "operator": pl.String,
        "measured": pl.Float64,
        "verdict": pl.String,
    }
    same = dict.fromkeys(("source", "statement", "published_subject"), pl.lit("s"))
    claims = pl.DataFrame(rows, schema=schema, orient="row").with_columns(published=0.5, **same)
    files = {name: [tmp_path / f"{name}.parquet"] for name in ("claims", "study_claims")}
    write_table(claims.head(4), *files["claims"])
    write_table(claims.tail(-4), *files["study_claims"])
    query = (ledger.STAGES / "claims/verdicts.sql").read_text()
    verdicts = Database(files).sql(query).pl().sort("claim", "operator", nulls_last=True)
    sides = ("reproduced", "not_reproduced", "not_testable", "lowest", "highest", "differ")
    assert verdicts.select("claim", "operator", *sides).rows() == [
        ("c1", "add", ["a", "b"], ["d"], None, 0.5, 3.0, True),
        ("c1", None, None, ["b"], ["a"], 2.0, 2.0, False),
        ("c2", "add", ["a", "b"], None, None, 4.0, 5.0, False),
    ]


@pytest.mark.parametrize(
    ("shared", "controls", "effect", "verdict"),
    [
        (0.1, (0.1, 0.1), 3.0, "reproduced"),
        (0.1, (0.1, None), 3.0, "reproduced"),
        (0.6, (0.1, 0.1), 3.0, "not reproduced"),
        (0.5, (0.1, 0.1), 3.0, "not testable here"),  # its interval contains 0.5
        (0.1, (0.6, 0.1), 3.0, "not testable here"),
        (0.1, (0.1, 0.6), 3.0, "not testable here"),
        (0.1, (0.1, 0.1), -3.0, "not testable here"),
    ],
)
def test_digits_are_judged_model_by_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: float,
    controls: tuple[float, float | None],
    effect: float,
    verdict: str,
):
    """Two digits share part of their effects one way and nothing the other way.

    Intervals are 0.1 wide. controls: share of random neurons, and of neurons that vary as much;
    effect: of each digit's own top neurons. Only the model's own rows count.
    """
    monkeypatch.chdir(tmp_path)
    shares = pl.DataFrame(
        {"digit": [1, 2, 1, 2], "of_digit": [1, 2, 2, 1], "share": [1.0, 1.0, shared, 0.0]}
    )
    by_chance, matched = (pl.lit(share, pl.Float64) for share in controls)
    shares = shares.with_columns(share_by_chance=by_chance, matched_share=matched)
    share = pl.col("share")
    shares = shares.with_columns(ci_low=share - 0.05, ci_high=share + 0.05)
    shares = shares.with_columns(effect=effect * pl.col("share"))
    operators = pl.DataFrame({"operator": ["add", "divide"]})
    table = operators.join(shares, how="cross").join(pl.DataFrame({"k": [5, 50]}), how="cross")
    folder = Path("data/neurons/digit_circuits")
    write_table(table.with_columns(subject=pl.lit("m-first")), folder / "m.parquet")
    others = table.with_columns(subject=pl.lit("o-first"), share=0.9, ci_low=0.8)
    write_table(others, folder / "other.parquet")
    study_claims.main("digits", "m")
    judged = pl.read_parquet("data/claims/study_claims/m.parquet")
    columns = ["subject", "claim", "operator", "measured", "ci_low", "ci_high", "verdict"]
    printed = (
        "m-first",
        "digits_have_circuits_of_their_own",
        "add",
        pytest.approx(shared / 2),
        -0.05,
        pytest.approx(shared + 0.05),
        verdict,
    )
    assert judged.select(columns).rows() == [printed]


def test_the_published_numbers_are_those_of_the_page():
    """Spot checks against the papers, so that a slip of the pen shows."""
    numbers = {claim["claim"]: claim["published"] for claim in LISTED}
    assert numbers["knockout_hurts_associated_prompts"] == pytest.approx(
        {
            "of": "Llama-3-8B",
            "add": 0.86 - 0.56,
            "subtract": 0.88 - 0.64,
            "multiply": 0.89 - 0.80,
            "divide": 0.91 - 0.78,
        }
    )
    assert numbers["few_heads"]["multiply"] == pytest.approx(20 / 1024, abs=1e-4)
    assert numbers["few_heads"]["add"] == pytest.approx(6 / 1024, abs=1e-4)
