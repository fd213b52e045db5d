"""Parts of an unfinished dump are kept as long as nothing changes that the dump reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.lib.model import tokenizer as tokenizers
from stages.lib.sql import stage as query
from stages.store import dump, prompts
from tests.conftest import random_model
from tests.micro import ROOT, SETTINGS, SHIPPED, alone, changed, merged

OPERANDS = 14


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the prompts of the subject `s`, a random Llama in float64 that adds."""
    model = random_model("llama")
    tokenizer = tokenizers.build(99, ["+ - * / = x ÷"])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    whole = changed(SETTINGS) | alone("s", source="model", operators=["add"])
    whole["cells"] |= {"largest_operand": OPERANDS - 1}
    whole["dump"] |= {"cells_per_block": 4 * OPERANDS}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(whole))
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    monkeypatch.setattr(
        "stages.lib.core.settings.files", lambda root=Path(): [root / "params.yaml"]
    )
    monkeypatch.chdir(tmp_path)
    query.main("corpus/cells")
    prompts.main("s")
    return tmp_path


def change(settings: dict[str, Any]) -> None:
    """Change settings in params.yaml."""
    whole = yaml.safe_load(Path("params.yaml").read_text())
    Path("params.yaml").write_text(yaml.safe_dump(merged(whole, settings)))


def own(**settings: Any) -> dict[str, Any]:
    """Return a change of the model's own entry."""
    return {"subjects": {"s": settings}}


PORTIONS = own(passes={"prompts_per_pass": 30})
NOT_READ = [
    {"sizes": {"s": {"pairs_per_split": 3, "patched_neurons": 2}}},
    own(runs=SHIPPED["runs"] | {"memory_mib": 256}),
    {"pairs": {"pairs_per_split": 3}},
]


READ = [("float64", own(revision="other")), ("float32", PORTIONS)]


@pytest.mark.parametrize(("dtype", "read"), READ)
def test_only_what_a_dump_reads_removes_its_parts(project: Path, dtype: str, read: dict[str, Any]):
    change(own(dtype=dtype))
    work = dump.DumpWork("s")
    work.do(0)
    for settings in [*NOT_READ, *[PORTIONS] * (dtype == "float64")]:
        change(settings)
        assert dump.DumpWork("s").missing() == [*range(1, len(work.units))]
    change(read)
    assert dump.DumpWork("s").missing() == [*range(len(work.units))]


def test_in_float64_parts_are_the_same_whatever_the_passes(project: Path):
    """So parts from passes of several sizes go together."""
    written: list[dict[Path, bytes]] = []
    for prompts_per_pass in (30, 100, 1000):
        change(own(passes={"prompts_per_pass": prompts_per_pass}))
        dump.main("s")
        files = [file for file in Path("data/s/store").rglob("*") if file.is_file()]
        written.append({file: file.read_bytes() for file in files})
    assert written[0] == written[1] == written[2]
    names = {"add.h5", "means.h5", "predictions.parquet", "value_logits.h5"}
    assert names <= {file.name for file in written[0]}
