"""What pages do with errors, with each other's work and with data that change, on a project made by hand."""

import logging
from pathlib import Path

import pytest

from stages.explorer.app import answered, tried
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS, View
from stages.explorer.question import Question
from stages.lib.core.settings import ParamsError
from tests.explorer.made import explorer, made
from tests.explorer.said import words


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These need no micro project."""


@pytest.fixture
def digits(tmp_path: Path) -> Explorer:
    return explorer(made(tmp_path))


def test_an_error_that_nobody_foresaw_is_a_sentence_and_its_place_is_in_the_log(digits: Explorer, caplog: pytest.LogCaptureFixture):
    def fails(*_: object) -> list:
        return [1 / 0]

    def refuses(*_: object) -> list:
        raise ParamsError("subjects.digits is missing")

    view = View("fails", "Fails", fails, fails)
    with caplog.at_level(logging.ERROR):
        assert "ZeroDivisionError: division by zero" in words(tried(view.content, digits, Question({})))
        assert "return [1 / 0]" in caplog.text
        fields, content = answered(digits, view, Question({"layer": 1}))
        assert fields == []
        assert '"role": "alert"' in words(content())
        assert "subjects.digits is missing" in words(tried(refuses, digits, Question({})))


def test_a_subject_stands_beside_itself(digits: Explorer):
    asked = Question({"subject": "digits", "other": "digits", "operator": "add"})
    assert '"role": "alert"' not in words(tried(VIEWS["compare"].later["more"], digits, asked))
