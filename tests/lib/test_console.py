"""The console `bag` answers what a user types."""

import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.lib import dictionary
from stages.lib.console.command import parser
from stages.lib.sql.database import connect
from tests.conftest import bag_in, run_in
from tests.micro import ROOT

QUERY = "select operator, count(*) as cells from cells group by operator order by operator"


def bag(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    return run_in(folder, "bag", *arguments, **options)


def test_a_query_prints_a_table(micro: Path):
    printed = bag(micro, QUERY).stdout
    assert re.search(r"multiply +│ +\d+", printed)


def test_csv_and_json_hold_the_same_rows(micro: Path):
    rows = json.loads(bag_in(micro, "--json", QUERY).stdout)
    lines = bag_in(micro, "--csv", QUERY).stdout.splitlines()
    assert lines == ["operator,cells", *(f"{row['operator']},{row['cells']}" for row in rows)]
    assert [row["operator"] for row in rows] == ["add", "divide", "multiply", "subtract"]


def test_a_query_comes_from_a_file_or_from_standard_input(micro: Path, tmp_path: Path):
    (tmp_path / "query.sql").write_text(QUERY)
    expected = bag_in(micro, "--csv", QUERY).stdout
    assert bag_in(micro, "--csv", str(tmp_path / "query.sql")).stdout == expected
    assert bag(micro, "--csv", "-", input=QUERY).stdout == expected


def test_parameters_have_names_and_types(micro: Path):
    query = "select count(*) as n from cells where operator = $operator and op1 = $op1"
    assert bag_in(
        micro, "--csv", query, "-p", "operator=add", "-p", "op1=3"
    ).stdout.splitlines() == ["n", "20"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["select * from cell"], ["cell", "cells"]),
        (["drop view cells"], ["only reads", "DROP"]),
        (["select $x"], ["$x has no value"]),
        (["select 1", "-p", "x"], ["NAME=VALUE", "'x'"]),
        (["nowhere.sql"], ["there is no file nowhere.sql in /", "SELECT"]),
        (["table"], ["unknown command 'table'", "tables, made, shell", '"from table"']),
        (
            ["select 1", "--data", "nowhere"],
            ["there is no folder nowhere in /", "`make`", "`make pull`", "--data"],
        ),
        (["select 1", "--data", "stages"], ["there is no table in /", "stages. ", "`make`"]),
        (["select * from read_csv('params.yaml')"], ["params.yaml"]),
    ],
)
def test_an_error_is_one_message_and_a_status(micro: Path, arguments: list[str], words: list[str]):
    done = (
        bag(micro, *arguments, check=False)
        if arguments == ["select $x"]
        else bag_in(micro, *arguments)
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("bag: ")
    for word in words:
        assert word in done.stderr


def _described() -> dict[str, dictionary.Table]:
    """Return every documented table but digit_circuits, which the micro project lacks.

    None of its models writes digits; tests/neurons/test_digit_circuits.py tests that table.
    """
    return {
        name: table
        for name, table in dictionary.tables(ROOT / "stages").items()
        if name != "digit_circuits"
    }


def test_tables_are_listed_with_every_column_and_its_meaning(micro: Path):
    printed = bag_in(micro, "tables").stdout
    for name, table in _described().items():
        assert re.search(rf"^{name}  {re.escape(table.meaning[:30])}", printed, re.MULTILINE)
        for column, (_, meaning) in table.columns.items():
            assert re.search(
                rf"^    {column} +\S.* +{re.escape(meaning[:30])}", printed, re.MULTILINE
            ), (name, column)


def test_some_tables_are_listed_alone(micro: Path):
    every, some = bag_in(micro, "tables").stdout, bag(micro, "tables", "pairs", "accuracy").stdout
    blocks = {block.split()[0]: block for block in every.strip().split("\n\n")}
    assert some.strip().split("\n\n") == [blocks["pairs"], blocks["accuracy"]]


def test_what_stands_behind_a_query_is_refused(micro: Path):
    for command, sentence in (
        (("tables", "nope"), "unknown table nope; available tables: "),
        (("select 1", "2"), "'2' follows it"),
    ):
        done = bag_in(micro, *command)
        assert done.returncode != 0
        assert sentence in done.stderr.splitlines()[-1]


def test_no_line_above_a_query_is_lost():
    """Any blanks may separate a column's name, type and meaning, and the meaning has many lines."""
    described = dictionary.tables(ROOT / "stages")
    for path in (ROOT / "stages").glob("*/*.sql"):
        table, words = described[path.stem], []
        for line in path.read_text().splitlines():
            if not line.startswith("--"):
                break
            words += line.removeprefix("--").split()
        columns = [f"{name} {kind} {meaning}" for name, (kind, meaning) in table.columns.items()]
        assert " ".join([table.meaning, *columns]).split() == words, path
        assert not any(
            re.match(r"\w+ [A-Z]{3,}\b", meaning) for _, meaning in table.columns.values()
        ), path


def test_a_column_may_be_described_with_single_blanks(tmp_path: Path):
    (tmp_path / "chapter").mkdir()
    (tmp_path / "chapter/made.sql").write_text(
        "-- What it is.\n-- a INTEGER the first\n--   and more\n-- b VARCHAR[] the second\nselect "
        "1\n"
    )
    made = dictionary.tables(tmp_path)["made"]
    assert (made.meaning, made.columns) == (
        "What it is.",
        {"a": ("INTEGER", "the first and more"), "b": ("VARCHAR[]", "the second")},
    )


def test_every_table_is_documented_as_it_is(micro: Path):
    """Compare names, order and types of the documented columns with the files."""
    database, described = connect(micro / "data"), _described()
    assert set(database.tables()) == set(described)
    for name in database.tables():
        assert database.columns(name) == {
            column: kind for column, (kind, _) in described[name].columns.items()
        }, name
        assert described[name].meaning


def test_the_shell_answers_and_survives_a_mistake(micro_copy: Path):
    typed = (
        "select 40 + 2\n as answer;\nselect nonsense;\nselect 'still ' || 'here' as there;\nexit\n"
    )
    done = bag(micro_copy, "shell", input=typed)
    assert "42" in done.stdout
    assert "nonsense" in done.stdout
    assert "still here" in done.stdout
    assert "as answer" in (micro_copy / ".bag_history").read_text()


def test_the_shell_has_commands(micro_copy: Path):
    typed = (
        "help\ntables pairs\n\\d pairs\nset layer 2\nset name = o'neill\nset\nselect $layer + 40 "
        "as l, $name as n;\nset name\n\\nope\n\\q\nselect 7;"
    )
    printed = bag(micro_copy, "shell", input=typed).stdout
    assert "SQL over " in printed
    assert "Commands: help, tables, set, exit." in printed
    assert "set NAME VALUE        fills $NAME" in printed
    assert len(re.findall(r"^pairs  ", printed, re.MULTILINE)) == 2
    assert '$layer = 2\n$name = "o\'neill"' in printed
    assert re.search(r"42 │ o'neill", printed)
    assert "unknown command \\nope" in printed
    assert "│ 7" not in printed.replace(" ", "")


def test_every_option_is_explained_and_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for action in parser()._actions:
        assert action.help
        for option in action.option_strings:
            assert option in readme or option in ("-h", "--help", "-p"), (
                f"{option} is not in the README"
            )


def test_an_answer_without_what_is_just_being_made_says_so(tmp_path: Path):
    """Query from within a stage of a real `dvc repro`, which keeps its journal until the end."""
    (tmp_path / "data/a/store").mkdir(parents=True)
    (tmp_path / "data/b/store").mkdir(parents=True)
    pl.DataFrame({"subject": ["b"]}).write_parquet(tmp_path / "data/b/store/accuracy.parquet")
    ask = (
        f"{sys.executable} -m stages.lib.console.bag 'from accuracy' 2> said; {sys.executable} -m "
        f"stages.lib.console.bag 'select 1' 2> silent"
    )
    stage = {
        "cmd": f"{ask}; touch data/a/store/accuracy.parquet",
        "outs": ["data/a/store/accuracy.parquet"],
    }
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"slow": stage}}))
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["dvc", "repro", "-q"]):
        run_in(tmp_path, *command, more={"PYTHONPATH": str(ROOT)})
    warning = (tmp_path / "said").read_text()
    problem = r"`dvc …` \(process \d+\) is making data/a/store/accuracy.parquet"
    assert re.fullmatch(rf"bag: {problem}: this answer is without it\n", warning)
    assert (tmp_path / "silent").read_text() == ""
