"""Test a subject's settings, files, tables and stores."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.lib.core import hdf5_store
from stages.lib.core.settings import ParamsError
from stages.lib.subject import Subject
from tests.micro import alone

AXES = {"neuron": 2, "op1": 3, "op2": 3}


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """Make the subject `s`: a table of three rows, stores of two operators, value logits."""
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump(alone("s", template="{op1} {symbol} {op2} ="))
    )
    monkeypatch.chdir(tmp_path)
    made = Subject.named("s")
    for operator in ("subtract", "add"):
        with hdf5_store.writing(made.path(f"store/activations/{operator}.h5")) as file:
            hdf5_store.LayerWriter(file, [0], AXES, "float16", (1, 3, 3), {"operator": operator})
    with hdf5_store.writing(made.path("store/value_logits.h5")) as file:
        hdf5_store.LayerWriter(file, [0], {"neuron": 2, "number": 7}, "float32", (2, 7), {})
    pairs = pl.DataFrame({"pair": [0, 1, 2], "operator": "add"})
    pairs.write_parquet(made.path("circuit/pairs.parquet"), mkdir=True)
    return made


def test_a_subject_has_its_settings_and_its_files(subject: Subject):
    assert subject.settings.template == "{op1} {symbol} {op2} ="
    assert subject.path("circuit/pairs.parquet") == Path("data/s/circuit/pairs.parquet")
    assert subject.table("circuit/pairs.parquet").shape == (3, 2)
    column = subject.table("circuit/pairs.parquet", ["pair"])
    assert column.to_dict(as_series=False) == {"pair": [0, 1, 2]}
    assert subject == Subject.named("s")


def test_a_subject_opens_its_stores_in_order(subject: Subject):
    opened = [(store.attributes["operator"], store.axes) for store in subject.activation_stores()]
    assert opened == [("add", AXES), ("subtract", AXES)]
    assert subject.value_logits().axes == {"neuron": 2, "number": 7}


def test_a_store_of_another_largest_operand_is_refused(subject: Subject):
    assert len(limited(subject, AXES["op1"] - 1).activation_stores()) == 2
    problem = r"add\.h5 holds the operands 0\.\.2, and s\.largest_operand is 9"
    way_out = r"dvc repro stages/store/dvc\.yaml:dump@s"
    with pytest.raises(ParamsError, match=f"{problem}; .*{way_out}"):
        limited(subject, 9).activation_stores()


def limited(subject: Subject, largest: int) -> Subject:
    """Return the subject with another largest operand."""
    settings = subject.settings.model_copy(update={"largest_operand": largest})
    return replace(subject, settings=settings)
