"""The console `bag` answers what a user types."""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.lib import dictionary
from stages.lib.console import command
from stages.lib.console.tables import first_sentence
from stages.lib.sql.database import connect
from tests.conftest import bag_in, run_in
from tests.micro import ROOT

QUERY = "select operator, count(*) as cells from cells group by operator order by operator"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three tables of one row."""
    data = tmp_path_factory.mktemp("few") / "data"
    for table in ("a/store/accuracy", "a/circuit/probes", "corpus/cells"):
        pl.DataFrame({"subject": ["a"]}).write_parquet(data / f"{table}.parquet", mkdir=True)
    return data


def bag(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    return run_in(folder, "bag", *arguments, **options)


@pytest.mark.parametrize("words", ["--help", "--version", "check --help", "completion tables"])
def test_help_and_completion_import_no_library(words: str):
    """Each takes a tenth of a second or more to import, torch seconds."""
    bag_command = (sys.executable, "-X", "importtime", "-m", "stages.lib.console.bag")
    done = run_in(ROOT, *bag_command, *words.split())
    assert done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not imported & {"numpy", "polars", "duckdb", "h5py", "pyarrow", "torch", "pydantic"}


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
        (["table"], ["unknown command 'table'", "query, tables, status", '"from table"']),
        (
            ["select 1", "--data", "nowhere"],
            ["there is no folder nowhere in /", "`make`", "`make pull`", "--data"],
        ),
        (["stauts"], ["unknown command 'stauts'", "Did you mean status?"]),
        (["made"], ["the command made is now status"]),
        (["tables", "--search", "zebra"], ["no table or column has 'zebra'", "`bag tables`"]),
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
    """Return every documented table but those of digits, which the micro project lacks.

    None of its models writes digits; tests/neurons/test_digit_circuits.py tests these tables.
    """
    tables = dictionary.tables(ROOT / "stages")
    for name in ("circuits", "interventions", "matched", "neurons", "pairs"):
        del tables[f"digit_{name}"]
    return tables


def test_each_table_is_a_line_and_with_its_name_every_column(micro: Path):
    lines = bag_in(micro, "tables").stdout.splitlines()
    assert [line.split()[0] for line in lines] == connect(micro / "data").tables()
    printed = bag_in(micro, "tables", *_described()).stdout
    for name, table in _described().items():
        assert re.search(rf"^{name}  {re.escape(table.meaning[:30])}", printed, re.MULTILINE)
        for column, (_, meaning) in table.columns.items():
            assert re.search(
                rf"^    {column} +\S.* +{re.escape(meaning[:30])}", printed, re.MULTILINE
            ), (name, column)


def test_some_tables_are_described_alone(micro: Path):
    some = bag(micro, "tables", "pairs", "accuracy").stdout
    names = [block.split()[0] for block in some.strip().split("\n\n")]
    assert names == ["pairs", "accuracy"]


def test_a_search_finds_names_meanings_and_columns(few: Path):
    def search(word: str, *more: str) -> list[str]:
        return bag_in(ROOT, "--data", str(few), "tables", "--search", word, *more).stdout.split(
            "\n"
        )

    by_column = search("MAJORITY")
    assert by_column[0] == (
        "accuracy  How often a model's prediction is correct on the cells of the grid"
    )
    assert by_column[1].split()[:2] == ["majority_accuracy", "DOUBLE"]
    assert by_column[2].startswith("probes  ")
    assert len(by_column) == 5
    assert search("probe", "probes")[0].startswith("probes  ")
    assert [line.split()[0] for line in search("op1") if line.startswith("c")] == ["cells"]


@pytest.mark.parametrize(
    ("meaning", "sentence"),
    [
        ("One. Two.", "One"),
        ("As told (Eq. 1. And 2), of v1.5 alone. Two.", "As told (Eq. 1. And 2), of v1.5 alone"),
        ("open (never closed. Two", "open (never closed. Two"),
        ("", ""),
    ],
)
def test_a_description_has_a_first_sentence(meaning: str, sentence: str):
    assert first_sentence(meaning) == sentence


def test_what_stands_behind_a_query_is_refused(micro: Path):
    for arguments, sentence in (
        (("tables", "nope"), "unknown table nope; available tables: "),
        (("select 1", "2"), "'2' follows it"),
    ):
        done = bag_in(micro, *arguments)
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
        "as l, $name as n;\nset name\nset layers 5\nselect $layer + 80;\nrows 0\nrows 3\ncsv\n"
        "records\nfrom range(1000, 2000);\n\\nope\n\\q\nselect 7;"
    )
    printed = bag(micro_copy, "shell", input=typed).stdout
    assert "SQL over " in printed
    assert "Commands: help, tables, set, rows, exit." in printed
    assert "set NAME VALUE        fills $NAME" in printed
    assert len(re.findall(r"^pairs  ", printed, re.MULTILINE)) == 2
    assert '$layer = 2\n$name = "o\'neill"' in printed
    assert re.search(r"42 │ o'neill", printed)
    assert re.search("│ +82 │", printed)  # although $layers, whose name it begins, is set, too
    assert "'0' is not a number of rows" in printed
    assert "1002" in printed
    assert "1003" not in printed
    assert "unknown command \\nope" in printed
    assert "│ 7" not in printed.replace(" ", "")


def test_every_command_and_option_is_explained_and_documented(capsys: pytest.CaptureFixture):
    page = (ROOT / "docs/console.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["bag.commands"]

    def check(parser: argparse.ArgumentParser, name: str) -> None:
        if name in command.COMMANDS:
            command.module(name).add_arguments(parser)
        is_of_another_version = name not in {*command.COMMANDS, *declared}
        assert is_of_another_version or f"`bag {name}" in page, f"bag {name} is not documented"
        for action in parser._actions:
            assert action.help
            for option in action.option_strings:
                is_known = option in page or option in ("-h", "--help")
                assert is_known, f"{option} of bag {name} is not in docs/console.md"

    whole = command.parser(check)
    printed = whole.format_help()
    for name in (*command.COMMANDS, *declared):
        assert re.search(rf"^    {name}\s+\S.*\w", printed, re.MULTILINE), name
    for name in command.COMMANDS:
        with pytest.raises(SystemExit, match=r"^0$"):
            command.main([name, "--help"])
        assert f"usage: bag {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        command.main(["--version"])
    assert re.fullmatch(r"bag \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("name", [*command.COMMANDS, *command.registered()])
def test_help_says_what_each_command_and_option_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    parsers: list[argparse.ArgumentParser] = []
    print_help = argparse.ArgumentParser.print_help

    def record(parser: argparse.ArgumentParser, *arguments: object) -> None:
        parsers.append(parser)
        print_help(parser, *arguments)

    monkeypatch.setattr(argparse.ArgumentParser, "print_help", record)
    with pytest.raises(SystemExit, match=r"^0$"):
        command.main([name, "--help"])
    [parser] = parsers
    assert capsys.readouterr().out.startswith(f"usage: bag {name} ")
    assert len((parser.description or "").split()) >= 4, f"bag {name} has no description"
    for action in parser._actions:
        assert (action.help or "").strip(), f"{action.dest} of bag {name} has no help"


@pytest.mark.parametrize(
    ("arguments", "name", "rest"),
    [
        ([], "", []),
        (["--help"], "", ["--help"]),
        (["tables", "--help"], "tables", ["--help"]),
        (["--data", "tables", "shell"], "shell", ["--data", "tables"]),
        (["--data=x y", "--csv", "status"], "status", ["--data=x y", "--csv"]),
        (["-p", "x=1", "select 1", "--csv"], "query", ["-p", "x=1", "select 1", "--csv"]),
        (["-- why\nselect 1"], "query", ["-- why\nselect 1"]),
        (["-"], "query", ["-"]),
        (["file.sql"], "query", ["file.sql"]),
        (["query", "tables"], "query", ["tables"]),
        (["check", "models/x"], "check", ["models/x"]),
    ],
)
def test_a_command_is_the_first_word(arguments: list[str], name: str, rest: list[str]):
    assert command.named(arguments) == (name, rest)


def test_a_shell_completes_commands_options_and_tables(tmp_path: Path):
    """Ask bash itself, with the printed script."""
    script = bag_in(ROOT, "completion", "bash").stdout
    (tmp_path / "script").write_text(script)
    (tmp_path / "bag").write_text("#!/bin/sh\necho accuracy\n")
    (tmp_path / "bag").chmod(0o755)
    completed = {"bag st": "status", "bag tables --se": "--search", "bag tables acc": "accuracy"}
    lines = ["shopt -s extglob", f"PATH={tmp_path}:$PATH", f"source {tmp_path / 'script'}"]
    for words in completed:
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))")
        lines.append("_shtab_bag; echo ${COMPREPLY[0]}")
    done = run_in(tmp_path, "bash", "-c", "\n".join(lines))
    assert done.stdout.split() == list(completed.values()), done.stderr
    assert "accuracy" in bag_in(ROOT, "completion", "tables").stdout.split()
    assert "#compdef bag" in bag_in(ROOT, "completion", "zsh").stdout


def test_an_answer_without_what_is_just_being_made_says_so(tmp_path: Path):
    """Query from within a stage of a real `dvc repro`, which keeps its journal until the end.

    stages.warm says how far the run is.
    """
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
    repro = (sys.executable, "-m", "stages.warm", "dvc", "repro")
    for words in (["git", "init", "-q"], ["dvc", "init", "-q"], repro):
        done = run_in(tmp_path, *words, more={"PYTHONPATH": str(ROOT)})
    assert done.stdout.startswith("Running stage 'slow':\n> ")
    assert done.stderr.startswith("stage 1 of 1\n")
    assert '"slow": ' in (tmp_path / ".dvc/tmp/stage_seconds.json").read_text()
    warning = (tmp_path / "said").read_text()
    problem = r"`dvc …` \(process \d+\) is making data/a/store/accuracy.parquet"
    assert re.fullmatch(rf"bag: {problem}: this answer is without it\n", warning)
    assert (tmp_path / "silent").read_text() == ""
