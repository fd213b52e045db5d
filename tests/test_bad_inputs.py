"""Test that bad model folders, tables, stores, locks and remotes are refused with a message."""

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest
from safetensors.torch import load_file
from transformers import T5Config

from stages.lib.console import command, locks
from stages.lib.console.folders import unlike_lock
from stages.lib.core import hdf5_store, shards
from stages.lib.core.settings import ParamsError, check
from stages.lib.core.tables import TableError, read_table, write_table
from stages.lib.model import checkpoint
from stages.lib.model.folder import INDEX, WEIGHTS, ModelError, existing
from stages.lib.settings import HubModel
from stages.mediation.pairs.own_tasks import fillings
from stages.mediation.settings import FilledTemplate
from stages.settings import Params
from stages.store import prompts
from tests.conftest import MAKE, run_in
from tests.micro import SHIPPED, copy_project, merged
from tests.model_folders import Change, changed, stored

LONGEST = 700  # characters of a message


def sentence(error: BaseException, *words: str) -> None:
    """Check that a message is short and contains these words.

    It has one line, or two if it names a file of settings and a key.
    """
    text = str(error)
    assert len(text.splitlines()) <= 2
    assert 10 < len(text) < LONGEST
    for word in words:
        assert word in text


# Model folders


def config(**values: object) -> Change:
    return changed("config.json", **values)


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def _file_for_a_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def _shard_missing(folder: Path) -> None:
    names = load_file(folder / WEIGHTS).keys()
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    (folder / WEIGHTS).rename(folder / "model-00002-of-00002.safetensors")


def _index_not_json(folder: Path) -> None:
    _shard_missing(folder)
    (folder / INDEX).write_text("{")


def _translation_model(folder: Path) -> None:
    T5Config(d_model=8, num_layers=1, d_ff=8).save_pretrained(folder)


def _long_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


DOWN = "model.layers.1.mlp.down_proj.weight"
MODELS: dict[str, Change] = {
    "a NaN": stored(lambda tensors: tensors[DOWN].view(-1)[:1].fill_(float("nan"))),
    "an infinite weight": stored(lambda tensors: tensors[DOWN].view(-1)[:1].fill_(float("inf"))),
    "an MLP that writes nothing": stored(lambda tensors: tensors[DOWN].zero_()),
    "one tensor alone": stored(lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]]),
    "no tensor": stored(lambda tensors: tensors.clear()),
    "a file in place of a folder": _file_for_a_folder,
    "an empty folder": lambda folder: [file.unlink() for file in folder.iterdir()],
    "a config that is null": text("config.json", "null"),
    "a config of no type": text("config.json", "{}"),
    "minus one layer": config(num_hidden_layers=-1),
    "no layers": config(num_hidden_layers=0),
    "layers that are a text": config(num_hidden_layers="three"),
    "a width that is a text": config(hidden_size="32"),
    "no heads": config(num_attention_heads=0),
    "heads that do not divide": config(num_attention_heads=5),
    "no such activation": config(hidden_act="no-such"),
    "a model that translates": _translation_model,
    "quantized weights": config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "a header of 2^60 bytes": _long_header,
    "a shard missing": _shard_missing,
    "an index that is not JSON": _index_not_json,
    "sums of a missing file": text("SHA256SUMS", "0" * 64 + "  no-such.safetensors\n"),
    "sums of other bytes": text("SHA256SUMS", "0" * 64 + "  model.safetensors\n"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_folder(whole: Path, tmp_path: Path, name: str):
    folder = Path(shutil.copytree(whole, tmp_path / "mine"))
    MODELS[name](folder)
    with pytest.raises(ModelError) as error:
        checkpoint.load(folder, "float32", "cpu", 1)
    sentence(error.value)


# Templates that a tokenizer cannot encode


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{op1}\u00a7{symbol}{op2}=", "does not know all of '1\u00a7+1='"),
        ("<s>{op1}{symbol}{op2}=", "holds the BOS '<s>'"),
    ],
)
def test_a_template(micro_copy: Path, template: str, words: str, monkeypatch: pytest.MonkeyPatch):
    file = micro_copy / "params.yaml"
    params = file.read_text()
    file.write_text(params.replace("{op1}{symbol}{op2}=", template, 1))
    assert file.read_text() != params
    monkeypatch.chdir(micro_copy)
    with pytest.raises(SystemExit) as ended:
        prompts.main("abacus")
    sentence(ended.value, words)


MAKES_SUMS = [
    "sha256sum *",
    "sha256sum --binary *",
    "sha256sum --tag *",
    "sha256sum ./*",
    "sha256sum * | sed 's/^[0-9a-f]*/\\U&/'",
    "sha256sum * | sed 's/$/\\r/'",
    "sha256sum * | sed '1i # taken by hand'",
]


@pytest.mark.parametrize("command", MAKES_SUMS)
def test_sums_are_read_in_every_form_that_sha256sum_checks(tmp_path: Path, command: str):
    for name in ("weights of a model", "a(b) = c", "back\\slash"):
        (tmp_path / name).write_text(name)
    script = f"{command} > ../sums && mv ../sums SHA256SUMS"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    assert existing(tmp_path) == tmp_path
    (tmp_path / "a(b) = c").write_text("other")
    with pytest.raises(ModelError, match=r"a\(b\) = c is not the file that .*SHA256SUMS lists"):
        existing(tmp_path)


def test_the_line_of_a_wrong_sum_is_named(tmp_path: Path):
    (tmp_path / "SHA256SUMS").write_text(f"# of a model\n{'0' * 63}  model.safetensors\n")
    with pytest.raises(ModelError) as refused:
        existing(tmp_path)
    sentence(refused.value, "line 2 of SHA256SUMS", "sha256sum * > SHA256SUMS")


# Tables of the user

FILES: dict[str, tuple[str, bytes, str]] = {
    "a header alone": ("a.csv", b"entity,answer\n", "has no"),
    "no answers": ("a.csv", b"entity,reply\nA,x\n", "'answer'"),
    "a quote that does not end": ("a.csv", b'entity,answer\n"A,' + b"x" * 200_000, "line"),
    "semicolons": ("a.csv", b"entity;answer\nA;x\n", "'entity;answer'"),
    "tabs": ("a.csv", b"entity\tanswer\nA\tx\n", "'entity\\tanswer'"),
    "another case": ("a.csv", b"Entity,Answer\nA,x\n", "'Entity'"),
    "a bell": ("a.csv", b"entity,answer\nA\x07,x\n", "\\x07"),
    "an escape": ("a.csv", b"entity,answer\nA,\x1b[31mx\n", "\\x1b"),
    "a Parquet file": ("a.csv", b"PAR1\x15\x04\x80", "UTF-8"),
    "a spreadsheet": ("a.csv", b"PK\x03\x04\xe2\x28\xa1", "UTF-8"),
    "an empty list": ("a.jsonl", b"[]\n", "not an object"),
    "a number": ("a.jsonl", b"7\n", "not an object"),
    "JSON over several lines": ("a.jsonl", b'{\n"entity": "A"\n}\n', "line 1 is not JSON"),
    "single quotes": ("a.jsonl", b"{'entity': 'A', 'answer': 'x'}\n", "line 1 is not JSON"),
    "two objects in a line": (
        "a.jsonl",
        b'{"entity": "A"} {"entity": "B"}\n',
        "line 1 is not JSON",
    ),
    "no rows": ("a.jsonl", b"\n\n", "no rows"),
    "a long answer": (
        "a.jsonl",
        b'{"entity": "A", "answer": "' + b"x" * 1001 + b'"}',
        "1,001 characters",
    ),
    "UTF-16": ("a.jsonl", '{"entity": "A"}'.encode("utf-16"), "UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_facts(tmp_path: Path, name: str):
    file, content, words = FILES[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ParamsError) as error:
        fillings(
            FilledTemplate(template="The sea of {entity} is", file=str(tmp_path / file)),
            "mediation.tables.seas.0",
        )
    sentence(error.value, words)


def test_a_folder_of_facts(tmp_path: Path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ParamsError) as error:
        fillings(
            FilledTemplate(template="{entity}", file=str(tmp_path / "a.csv")),
            "mediation.tables.seas.0",
        )
    sentence(error.value, "no such file")


SEAS = {"template": "The sea of {entity} is", "file": "seas.csv"}
ENTRIES: dict[str, tuple[dict, str]] = {
    "no placeholder": ({"seas": [{**SEAS, "template": "The sea is"}]}, "needs a placeholder"),
    "the answer asked for": (
        {"seas": [{**SEAS, "template": "{entity}: {answer}"}]},
        "must not contain {answer}",
    ),
    "a brace that stays open": ({"seas": [{**SEAS, "template": "{entity"}]}, "template"),
    "an attribute": ({"seas": [{**SEAS, "template": "{entity.name}"}]}, "template"),
    "another format": ({"seas": [{**SEAS, "file": "seas.xlsx"}]}, "file"),
    "no file": ({"seas": [{"template": SEAS["template"]}]}, "file is missing"),
    "a column for nothing": (
        {"seas": [{**SEAS, "columns": {"city": "name"}}]},
        "columns names 'city'",
    ),
    "no templates": ({"seas": []}, "at least 1 item"),
    "a template that is a text": ({"seas": ["The sea of {entity} is"]}, "seas"),
    "the name of a task": ({"factual": [SEAS]}, "which is already a task"),
    "a name with a capital": ({"Seas": [SEAS]}, "Seas"),
    "no number of pairs": ({"seas": [SEAS]}, "lacks 'seas'"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_a_table(name: str):
    tables, words = ENTRIES[name]
    with pytest.raises(ParamsError) as error:
        check(Params, merged(SHIPPED, {"mediation": {"tables": tables}}))
    sentence(error.value, words)


# Stores


def store(path: Path) -> Path:
    with hdf5_store.writing(path) as file:
        writer = hdf5_store.LayerWriter(
            file, [2], {"neuron": 4, "op1": 6, "op2": 5}, "float32", (2, 3, 5), {"operator": "add"}
        )
        writer.write(2, 0, np.random.default_rng(0).normal(size=(4, 6, 5)))
    return path


def inside(change: Callable[[h5py.File], object]) -> Change:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return damage


def keeping(size: int) -> Change:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


STORES: dict[str, Change] = {
    **{f"{size} bytes": keeping(size) for size in (0, 1, 8, 100, 500, 1000, -1)},
    "a text": lambda path: path.write_text("no store"),
    "a table": lambda path: write_table(pl.DataFrame({"a": [1]}), path),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "no layers": inside(lambda file: file.pop("layers")),
    "no layer": inside(lambda file: file["layers"].pop("2")),
    "a layer without number": inside(lambda file: file["layers"].move("2", "two")),
    "no axes": inside(lambda file: file.attrs.pop("axes")),
    "too few axes": inside(lambda file: file.attrs.update(axes="neuron, op1")),
    "axes that are a number": inside(lambda file: file.attrs.update(axes=7)),
    "a layer that is a folder": inside(
        lambda file: (file["layers"].pop("2"), file["layers"].create_group("2"))
    ),
    "not in chunks": inside(
        lambda file: (
            file["layers"].pop("2"),
            file["layers"].create_dataset("2", data=np.zeros((4, 6, 5))),
        )
    ),
    "a column that is a folder": inside(lambda file: file.create_group("columns/result")),
}


@pytest.mark.parametrize("name", STORES)
def test_a_store(tmp_path: Path, name: str):
    path = store(tmp_path / "add.h5")
    STORES[name](path)
    with pytest.raises(hdf5_store.StoreError) as error:
        hdf5_store.LayerStore(path).read(2, slice(None), slice(None))
    sentence(error.value, "add.h5")


TABLES: dict[str, Change] = {
    **{f"{size} bytes": keeping(size) for size in (0, 4, 11, 60, -1, -8)},
    "a text": lambda path: path.write_text("no table"),
    "a store": store,
    "an end alone": lambda path: path.write_bytes(b"PAR1"),
    "a footer longer than the file": lambda path: path.write_bytes(
        path.read_bytes()[:-8] + struct.pack("<I4s", 1 << 30, b"PAR1")
    ),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table(tmp_path: Path, name: str):
    path = tmp_path / "cells.parquet"
    write_table(pl.DataFrame({"a": range(100)}), path)
    TABLES[name](path)
    with pytest.raises(TableError) as error:
        read_table(path)
    sentence(error.value, "cells.parquet")


def test_a_folder_without_the_operators_store(tmp_path: Path):
    store(tmp_path / "add.h5")
    with pytest.raises(hdf5_store.StoreError) as error:
        shards.store_of(tmp_path, "divide")
    sentence(error.value, "has no store of divide")


def test_every_flipped_byte_of_means_is_refused_by_name_or_harmless(tmp_path: Path):
    path, refused = tmp_path / "means.h5", 0
    arrays: dict[str, np.ndarray] = {}
    for seed, name in enumerate(("neurons", "heads", "residual")):
        arrays[name] = np.random.default_rng(seed).normal(size=(2, 3, 5, 4)).astype(np.float32)
    hdf5_store.write_array(path, arrays, {"subject": "s"})
    clean = path.read_bytes()
    for place in range(0, len(clean), 7):
        flipped = bytearray(clean)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        for name, expected in arrays.items():
            try:
                array = hdf5_store.read_array(path, name)
            except hdf5_store.StoreError as error:
                sentence(error, "means.h5")
                refused += 1
            else:
                assert np.array_equal(array, expected)
                assert array.dtype == np.float32
    assert refused > 100


# Locks

STAGE = """  {name}:
    cmd: python -m stages.{name}
    outs:
    - path: data/{name}.parquet
      hash: md5
      md5: 0123456789abcdef0123456789abcdef
      size: 7
"""
STAGES = [STAGE.format(name=name) for name in ("cells", "facts", "tasks")]
LOCK = "schema: '2.0'\nstages:\n" + "".join(STAGES)
CONFLICT = "<<<<<<< HEAD\n      size: 7\n=======\n      size: 8\n>>>>>>> other"
LOCKS: dict[str, bytes] = {
    "empty": b"",
    "a line's end": b"\n",
    "its first line": LOCK[:15].encode(),
    "no stage": LOCK[:23].encode(),
    "the first stage": LOCK[: LOCK.index("  facts")].encode(),
    "two stages": LOCK[: LOCK.index("  tasks")].encode(),
    "the name of the last": LOCK[: LOCK.index("  tasks") + 9].encode(),
    "half of the last": LOCK[: LOCK.index("  tasks") + 60].encode(),
    "all but the last size": LOCK[: LOCK.rindex("      size")].encode(),
    "all but a line's end": LOCK[:-1].encode(),
    "half a sum": LOCK[: LOCK.rindex("0123")].encode(),
    "a text": b"hello\n",
    "a list": b"- cells\n- facts\n",
    "stages that are a list": b"schema: '2.0'\nstages:\n- cells\n",
    "stages that are nothing": b"schema: '2.0'\nstages:\n",
    "stages that are a number": b"schema: '2.0'\nstages: 7\n",
    "zeros": b"\0" * 300,
    "another encoding": LOCK.encode("utf-16"),
    "bytes": bytes(range(128, 256)),
    "a conflict": f"<<<<<<< HEAD\n{LOCK}=======\n{LOCK}>>>>>>> other\n".encode(),
    "a conflict in a stage": LOCK.replace("      size: 7", CONFLICT, 1).encode(),
    "a tab": LOCK.replace("    outs", "\touts").encode(),
    "the middle cut out": LOCK.replace(STAGES[1], "").encode(),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locks")
    (folder / "stages/corpus").mkdir(parents=True)
    (folder / "stages/corpus/dvc.lock").write_text(LOCK)
    commit = "git -c user.name=t -c user.email=t@t commit -qm lock"
    subprocess.run(f"git init -q && git add -A && {commit}", shell=True, cwd=folder, check=True)
    locks.check(folder)
    return folder


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock(repository: Path, name: str):
    (repository / "stages/corpus/dvc.lock").write_bytes(LOCKS[name])
    with pytest.raises(locks.LockError) as error:
        locks.check(repository)
    theirs = "--theirs " if "conflict" in name else ""
    way_out = f"git checkout {theirs}-- stages/corpus/dvc.lock"
    sentence(error.value, "stages/corpus/dvc.lock", way_out, "dvc repro")


def test_a_conflict_is_left_to_the_user(repository: Path, monkeypatch: pytest.MonkeyPatch):
    """`make` restores a truncated lock, but does not resolve a conflict; `bag` reports it."""
    monkeypatch.chdir(repository)
    Path("stages/corpus/dvc.lock").write_bytes(LOCKS["a conflict in a stage"])
    with pytest.raises(SystemExit) as error:
        locks.main()
    sentence(
        error.value,
        "stages/corpus/dvc.lock has a merge conflict",
        "git checkout --theirs -- stages/corpus/dvc.lock",
    )
    assert Path("stages/corpus/dvc.lock").read_bytes() == LOCKS["a conflict in a stage"]
    assert list(unlike_lock("select 1", Path("data"))) == [str(error.value)]


def test_a_project_that_is_not_a_git_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for check_locks in (locks.main, lambda: locks.check(tmp_path)):
        with pytest.raises((SystemExit, locks.LockError)) as error:
            check_locks()
        sentence(error.value, "not a git repository", "`git init`", "`dvc config core.no_scm true`")
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    locks.main()
    locks.check(tmp_path)


# Remotes

COMMIT = "0" * 40
REPOSITORIES = [
    *("", "gpt2", "/gpt2", "org/", "org/a/b", "../gpt2", "org/../x", "org name/x"),
    *("https://huggingface.co/org/x", "org/x@main", "org/x;ls"),
    *("-org/x", "org/-x", "org\\x", "org/x\n"),
]
COMMITS = [
    *("", "main", "v1.0", "refs/pr/1"),
    *("0" * 39, "0" * 41, "F" * 40, "g" * 40, " " + "0" * 39, "0" * 40 + "\n"),
    *(None, 7),
]
HUBS = [{"repo": repo, "commit": COMMIT} for repo in REPOSITORIES]
HUBS += [{"repo": "org/x", "commit": commit} for commit in COMMITS]


@pytest.mark.parametrize(
    "model",
    [
        *HUBS,
        {"repo": "org/x"},
        {"commit": COMMIT},
        {"repo": "org/x", "commit": COMMIT, "token": "hf_x"},
        "org/x",
    ],
    ids=str,
)
def test_a_model_of_the_hub(model: object):
    with pytest.raises(ParamsError) as error:
        check(HubModel, model, "hub.mine")
    sentence(error.value, "hub.mine")


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("no-such", "no-such"),
        ("params.yaml", "params.yaml"),
        ("s4://bag/data", "s4://bag/data"),
        ("ftp://", "ftp://"),
        ("http://127.0.0.1:9/data", "http://127.0.0.1:9/data"),
        ("://", "://"),
        ("", "folder"),
        ("\0", ""),
    ],
)
def test_a_folder_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, words: str
):
    (tmp_path / "params.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        command.main(["--data", folder, "select 1"])
    sentence(error.value, words)


@pytest.mark.parametrize(
    "url",
    ["", "ssh://user:secret@host/folder", "s3://key:secret@bucket", "https://user:pass@host/x"],
)
def test_a_remote(tmp_path_factory: pytest.TempPathFactory, url: str):
    project = tmp_path_factory.getbasetemp() / "remote"
    if not project.exists():
        copy_project(project)
    before = (project / ".dvc/config").read_text()
    done = run_in(project, *MAKE, "remote", f"URL={url}", check=False)
    assert done.returncode != 0
    assert re.search("make remote: (name a place|the URL holds a password)", done.stderr)
    assert (project / ".dvc/config").read_text() == before
