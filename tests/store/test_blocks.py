"""Memory limits the blocks of a dump; for the shipped models only the settings do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.core import environment
from stages.store.rectangles import PromptGrid, Rectangle
from stages.store.settings import Dump
from tests.micro import ROOT, SHIPPED

DUMP = Dump(**SHIPPED["dump"])
SIDE = SHIPPED["cells"]["largest_operand"] + 1
LOCK = yaml.safe_load((ROOT / "stages/store/dvc.lock").read_text())["stages"]
DUMPS = {name: stage for name, stage in LOCK.items() if name.startswith("dump@")}
QWEN = 24 * 4_864  # layers x neurons of Qwen2.5-0.5B


def blocks(rows: int, columns: int, prompts: int) -> list[range]:
    grid: Any = SimpleNamespace(shape=(rows, columns))
    return PromptGrid.blocks(grid, prompts)


@pytest.mark.parametrize("name", DUMPS)
def test_memory_leaves_the_blocks_of_shipped_models_as_they_are(name: str):
    """Their activations' size is taken from the lock file."""
    sizes = {Path(out["path"]).name: out["size"] for out in DUMPS[name]["outs"]}
    model = SHIPPED["known"][name.removeprefix("dump@")]
    operators = model.get("operators", ["add", "subtract", "multiply", "divide"])
    values = sizes["activations"] // (2 * len(operators) * SIDE**2)
    prompts = DUMP.prompts_per_block(values, "float64")
    assert prompts == DUMP.cells_per_block
    rows = DUMP.cells_per_block // SIDE
    cut = blocks(SIDE, SIDE, prompts)
    assert [block.start for block in cut] == list(range(0, SIDE, rows))
    assert {len(block) for block in cut} == {rows}


def test_a_block_of_a_deep_model_fits_into_half_of_the_memory():
    prompts = DUMP.prompts_per_block(QWEN, "float32")
    assert [len(rows) for rows in blocks(100, 100, prompts)] == [34, 34, 32]
    assert prompts * QWEN * 2 <= DUMP.memory_mib << 19
    wide = DUMP.model_copy(update={"store_dtype": "float32"})
    assert wide.prompts_per_block(QWEN, "float32") == prompts // 2
    assert DUMP.prompts_per_block(10**12, "float32") == 1  # a row is run however large it is


def test_a_block_holds_a_pass_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """For a shape such as Llama-3-8B's. A float64 model has the same blocks on every machine."""
    values, in_pass = 32 * 14_336, 1_500 * environment.PASSES_ON_GPU
    exact = DUMP.prompts_per_block(values, "float64")
    assert DUMP.prompts_per_block(values, "bfloat16") == exact < in_pass / 16
    monkeypatch.setenv("BAG_DEVICE", "cuda")
    assert DUMP.prompts_per_block(values, "float64") == exact
    assert 0.7 * in_pass < DUMP.prompts_per_block(values, "bfloat16") <= DUMP.cells_per_block


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4_000))
def test_blocks_are_as_few_as_can_be_and_alike(rows: int, columns: int, prompts: int):
    cut = blocks(rows, columns, prompts)
    assert [row for block in cut for row in block] == list(range(rows))
    most = max(1, prompts // columns)
    assert len(cut) == -(-rows // most)
    assert {len(block) for block in cut[:-1]} <= {len(cut[0])}
    assert len(cut[0]) <= most


@given(
    st.sets(st.integers(0, 12), min_size=1),
    st.sets(st.integers(0, 12), min_size=1),
    st.integers(1, 40),
)
def test_pieces_are_a_rectangle_and_small_where_it_has_gaps(
    rows: set[int], columns: set[int], prompts: int
):
    own_rows, own_columns = np.array(sorted(rows)), np.array(sorted(columns))
    tokens = (own_rows[:, None] * 100 + own_columns)[..., None]
    whole = Rectangle(own_rows, own_columns, tokens, np.arange(1))
    seen = []
    for piece in whole.pieces(prompts):
        expected = piece.rows[:, None] * 100 + piece.columns
        assert (piece.tokens[..., 0] == expected).all()
        assert len(piece.columns) <= prompts
        assert whole.consecutive or piece.tokens.size <= prompts
        seen += expected.ravel().tolist()
    assert sorted(seen) == sorted(tokens.ravel().tolist())
