"""GGUF files as sources: converted to the logits and tokens of the model they hold, or refused."""

import contextlib
import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core.settings import ParamsError, check, read
from stages.lib.gguf import configuration, header, source, weights
from stages.lib.model import checkpoint, folder, tokenizer
from stages.lib.model.folder import ModelError
from stages.lib.subject import load_subject
from stages.settings import Params
from stages.store import add
from stages.store import check as checks
from tests import gguf_files
from tests.conftest import run_in
from tests.gguf_files import BOS, Q8_0, TOKENS
from tests.micro import ROOT, copy_project

PROMPTS = torch.tensor([[1, 5, 90, 200], [7, 8, 9, 10]])
DIFFERENT = {  # settings other than those that transformers would take by itself
    "llama": {"tie_word_embeddings": True, "head_dim": 16},
    "qwen2moe": {"decoder_sparse_step": 1},
    "qwen3": {"head_dim": 16},
    "qwen3moe": {"decoder_sparse_step": 1, "norm_topk_prob": True, "head_dim": 16},
}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a tiny Qwen2, which tests only read."""
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return gguf_files.write_model(file, gguf_files.model("qwen2"), "qwen2")


def empty(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir()
    return folder


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(PROMPTS, use_cache=False).logits


@pytest.mark.parametrize("architecture", configuration.FAMILIES)
def test_a_file_has_the_logits_of_its_model(
    architecture: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    made = gguf_files.model(architecture, **DIFFERENT.get(architecture, {}))
    file = gguf_files.write_model(tmp_path / "x.gguf", made, architecture)
    monkeypatch.setattr(weights, "SHARD", 40_000)  # several files
    source.convert(file, tmp_path / "made")
    assert len([*(tmp_path / "made").glob("*.safetensors")]) > 1
    loaded = checkpoint.read(tmp_path / "made", dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(made), rtol=0, atol=2e-5)
    for name in ("rope_parameters", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads"):
        assert getattr(loaded.config, name, 0) == getattr(made.config, name, 0)


def test_quantised_weights_are_those_that_gguf_dequantises(tmp_path: Path):
    made = gguf_files.model("llama", intermediate_size=64)  # blocks have 32 numbers
    file = gguf_files.write_model(tmp_path / "x.gguf", made, "llama", Q8_0)
    source.convert(file, tmp_path / "made")
    loaded = checkpoint.read(tmp_path / "made", dtype=torch.float32)
    for name, weight in loaded.state_dict().items():
        close = 0 if weight.ndim == 1 else weight.abs().max() / 127
        assert (weight - made.state_dict()[name]).abs().max() <= close, name
    listed = [
        line.split("  ") for line in (tmp_path / "made" / source.NOTE).read_text().splitlines()
    ]
    assert listed == [[hashlib.sha256(file.read_bytes()).hexdigest(), "x.gguf"]]


def test_the_same_file_gives_the_same_bytes_and_leaves_nothing_else(qwen: Path, tmp_path: Path):
    for name in ("one", "two", "two"):
        source.convert(qwen, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    sums = [(tmp_path / name / folder.SUMS).read_text() for name in ("one", "two")]
    assert sums[0] == sums[1]


def test_the_frequencies_of_llama_3_are_found_again(tmp_path: Path):
    rope = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    made = gguf_files.model("llama", rope_parameters=rope, head_dim=32)
    metadata = {"general.architecture": "llama"} | gguf_files.settings("llama", made.config)
    metadata |= gguf_files.tokens()
    plain = 500_000.0 ** (-torch.arange(0, 32, 2) / 32)
    own = made.model.rotary_emb.inv_freq
    parts = gguf_files.tensors("llama", made) | {"rope_freqs.weight": (plain / own).numpy()}
    source.convert(gguf_files.write(tmp_path / "x.gguf", metadata, parts), tmp_path / "made")
    loaded = checkpoint.read(tmp_path / "made", dtype=torch.float32)
    assert loaded.config.rope_parameters == rope
    torch.testing.assert_close(loaded.model.rotary_emb.inv_freq, own)
    other = parts | {"rope_freqs.weight": torch.linspace(1, 4, 16).numpy()}
    with pytest.raises(ModelError, match="not those of Llama 3"):
        source.convert(gguf_files.write(tmp_path / "y.gguf", metadata, other), tmp_path / "made")


DIGITS = ["2", "2", "6", "-", "1", "0", "="]
TOGETHER = ["2", "2", "6", "-", "10", "="]  # as the merge 1 0 would have it


@pytest.mark.parametrize(
    ("more", "pieces"),
    [
        ({"pre": "qwen2"}, DIGITS),
        ({"pre": "smollm"}, DIGITS),
        ({"pre": "starcoder"}, DIGITS),
        ({"pre": "llama-bpe"}, [BOS, *TOGETHER]),
        ({"pre": "llama-bpe", "add_bos_token": False}, TOGETHER),
        ({"pre": "gpt-2"}, TOGETHER),
        ({"pre": "gpt-2", "add_bos_token": True}, [BOS, *TOGETHER]),
    ],
)
def test_text_is_cut_and_begun_as_the_file_says(
    more: dict[str, Any],
    pieces: list[str],
    tmp_path: Path,
):
    made = gguf_files.model("llama")
    file = gguf_files.write_model(
        tmp_path / "x.gguf", made, "llama", **{"add_bos_token": None, **more}
    )
    source.outline(file, empty(tmp_path / "made"))
    loaded = tokenizer.load(tmp_path / "made")
    assert loaded.convert_ids_to_tokens(loaded("226-10=")["input_ids"]) == pieces
    assert loaded.get_vocab() == {token: number for number, token in enumerate(TOKENS)}
    assert loaded(f"1{BOS}0")["input_ids"][-3:] == [
        TOKENS.index(token) for token in ("1", BOS, "0")
    ]
    chat = loaded.apply_chat_template([{"role": "user", "content": "1+1"}], tokenize=False)
    assert (chat, loaded.bos_token, loaded.eos_token) == ("1+1=", BOS, gguf_files.END)


def test_a_cut_that_transformers_does_not_keep_for_the_family_is_kept_here(tmp_path: Path):
    """The class of Qwen2's tokenizer splits digits; this file does not."""
    file = gguf_files.write_model(
        tmp_path / "x.gguf", gguf_files.model("qwen2"), "qwen2", pre="gpt-2"
    )
    source.outline(file, empty(tmp_path / "made"))
    loaded = tokenizer.load(tmp_path / "made")
    assert (
        loaded.convert_ids_to_tokens(loaded("226-10=", add_special_tokens=False)["input_ids"])
        == TOGETHER
    )


PIECES = ["<unk>", "<s>", "▁", *"0123456789+-=", "10", "▁1"]


@pytest.mark.parametrize(
    ("more", "pieces"),
    [
        ({}, ["<s>", "▁", "2", "-", "10", "="]),
        ({"add_space_prefix": False, "add_bos_token": False}, ["2", "-", "10", "="]),
    ],
)
def test_sentencepiece_puts_a_blank_and_bos_first_unless_the_file_says_no(
    more: dict[str, Any],
    pieces: list[str],
    tmp_path: Path,
):
    made = gguf_files.model("llama", vocab_size=len(PIECES))
    own = {
        "model": "llama", "pre": "default", "tokens": PIECES, "merges": None,
        "scores": [0.0, 0.0, *(-float(i) for i in range(2, len(PIECES)))],
        "token_type": [2, 3] + [1] * (len(PIECES) - 2), "unknown_token_id": 0,
        "bos_token_id": 1, "eos_token_id": None, "padding_token_id": None, "add_bos_token": None,
    }  # fmt: skip
    source.outline(
        gguf_files.write_model(tmp_path / "x.gguf", made, "llama", **own | more),
        empty(tmp_path / "made"),
    )
    loaded = tokenizer.load(tmp_path / "made")
    assert loaded.convert_ids_to_tokens(loaded("2-10=")["input_ids"]) == pieces


Change = Callable[[dict[str, Any], dict[str, Any]], Any]


def sets(**values: Any) -> Change:
    """Metadata, their dots written as __."""
    return lambda metadata, _: metadata.update({k.replace("__", "."): v for k, v in values.items()})


def leaves(*names: str) -> Change:
    return lambda _, parts: [parts.pop(name) for name in names]


REFUSED: dict[str, tuple[Change, str]] = {
    "an adapter": (sets(general__type="adapter"), "is an adapter; merge it"),
    "a projector": (sets(general__type="mmproj"), r"multimodal projector \(mmproj\)"),
    "importances": (sets(general__type="imatrix"), "holds 'imatrix'"),
    "a part": (sets(split__count=3), "one of 3 parts"),
    "an unknown family": (sets(general__architecture="rwkv7"), "has the architecture 'rwkv7'"),
    "a family that is not exact": (sets(general__architecture="falcon"), "'falcon'"),
    "a vocabulary": (lambda _, parts: parts.clear(), "no weights, only a vocabulary"),
    "no tokenizer": (sets(tokenizer__ggml__tokens=None), "has no tokenizer"),
    "another tokenizer": (sets(tokenizer__ggml__model="bert"), "tokenizer of the kind 'bert'"),
    "an unknown cut": (sets(tokenizer__ggml__pre="new"), "tokenizer.ggml.pre = 'new'"),
    "no cut": (sets(tokenizer__ggml__pre=None), "tokenizer.ggml.pre = None"),
    "no merges": (sets(tokenizer__ggml__merges=None), "no merges"),
    "a merge of nothing": (sets(tokenizer__ggml__merges=["1 Z9"]), "merge '1 Z9' makes no token"),
    "twins": (sets(tokenizer__ggml__tokens=["1"] * len(TOKENS)), "two tokens of the same name"),
    "more tokens": (sets(tokenizer__ggml__tokens=[*TOKENS, "more"]), "265 tokens, and embeddings"),
    "BOS of nothing": (
        sets(tokenizer__ggml__bos_token_id=None, tokenizer__ggml__add_bos_token=True),
        "puts a BOS token first, but names none",
    ),
    "a far BOS": (sets(tokenizer__ggml__bos_token_id=9999), "bos_token_id is 9999"),
    "scaled positions": (sets(qwen2__rope__scaling__type="yarn"), "rope.scaling.type = yarn"),
    "a new setting": (sets(qwen2__attention__temperature=2.0), "qwen2.attention.temperature = 2.0"),
    "experts": (sets(qwen2__expert_count=4), "qwen2.expert_count = 4"),
    "unequal layers": (sets(qwen2__feed_forward_length=[48, 48, 32]), "differs between layers"),
    "no width": (sets(qwen2__embedding_length=None), "lacks the setting qwen2.embedding_length"),
    "another width": (sets(qwen2__embedding_length=64), "is .* in the model that its settings"),
    "more layers": (sets(qwen2__block_count=4), "the file holds nothing for it"),
    "fewer layers": (sets(qwen2__block_count=2), r"blk\.2\.\S+ has no place in the model"),
    "heads that do not fit": (sets(qwen2__attention__head_count=5), r"q_proj.weight is \(30, 32\)"),
    "no heads": (sets(qwen2__attention__head_count=0), "head_count = 0 is not a number above 0"),
    "a word": (sets(qwen2__block_count="three"), "block_count = 'three' is not a number above 0"),
    "a billion layers": (sets(qwen2__block_count=10**9), "block_count = 1000000000 is more than"),
    "a missing weight": (leaves("blk.1.ffn_up.weight"), "layers.1.mlp.up_proj.weight"),
    "an unknown weight": (
        lambda _, parts: parts.update({"blk.0.extra.weight": PROMPTS.float().numpy()}),
        "blk.0.extra.weight has no place",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of the tiny Qwen2."""
    made = gguf_files.model("qwen2")
    metadata = {"general.architecture": "qwen2"} | gguf_files.settings("qwen2", made.config)
    return metadata | gguf_files.tokens(), gguf_files.tensors("qwen2", made)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_model_is_refused_by_name(
    name: str,
    parts: tuple[dict[str, Any], dict[str, Any]],
    tmp_path: Path,
):
    (metadata, tensors), (change, sentence) = map(dict, parts), REFUSED[name]
    change(metadata, tensors)
    file = gguf_files.write(tmp_path / "x.gguf", metadata, tensors)
    with pytest.raises(ModelError, match=sentence) as refused:
        source.convert(file, tmp_path / "made")
    assert str(refused.value).startswith(str(file))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_a_part_of_a_split_model_is_known_by_its_name(qwen: Path, tmp_path: Path):
    shutil.copy(qwen, tmp_path / "x-00001-of-00003.gguf")
    with pytest.raises(ModelError, match="one of 3 parts"):
        source.outline(tmp_path / "x-00001-of-00003.gguf", tmp_path)


@settings(max_examples=25)
@given(st.data())
def test_a_truncated_file_is_refused_wherever_it_ends(qwen: Path, data: st.DataObject):
    whole = qwen.read_bytes()
    end = data.draw(st.integers(0, len(whole) - 1))
    with _copy(qwen, whole[:end]) as file, pytest.raises(ModelError):
        header.read(file)


@settings(max_examples=20)
@given(st.data())
def test_a_damaged_header_is_read_or_refused(qwen: Path, data: st.DataObject):
    whole = bytearray(qwen.read_bytes())
    for place in data.draw(st.lists(st.integers(4, 12_000), min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    with _copy(qwen, bytes(whole)) as file, contextlib.suppress(ModelError):
        source.outline(file, file.parent)


class _copy:
    """A file of other bytes beside a file, for as long as the block lasts."""

    def __init__(self, beside: Path, content: bytes):
        self.folder = beside.parent / "copy"
        self.folder.mkdir(exist_ok=True)
        self.file = self.folder / "copy.gguf"
        self.file.write_bytes(content)

    def __enter__(self) -> Path:
        return self.file

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (b"", "not a GGUF file"),
        (b"PK\3\4", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63), "truncated"),
    ],
)
def test_other_files_are_refused_at_once(start: bytes, sentence: str, tmp_path: Path):
    (tmp_path / "x.gguf").write_bytes(start)
    with pytest.raises(ModelError, match=sentence):
        source.outline(tmp_path / "x.gguf", tmp_path)


def test_a_type_that_gguf_cannot_dequantise_is_refused(
    qwen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    opened = header.read(qwen)
    name, tensor = next(iter(opened.tensors.items()))
    strange = header.Stored(name, tensor.shape, header.GGMLQuantizationType.Q8_K, 0, 0)
    monkeypatch.setattr(
        header,
        "read",
        lambda _: header.Header(
            qwen,
            opened.metadata,
            {name: strange, **{}} | {k: v for k, v in opened.tensors.items() if k != name},
        ),
    )
    with pytest.raises(ModelError, match=f"{name} is of the type Q8_K"):
        source.outline(qwen, tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_the_work(
    qwen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ModelError, match=r"take 0.0 GiB as float32, and 0.0 GiB are free"):
        source.convert(qwen, tmp_path / "made")
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen: Path) -> Path:
    """A folder with the project's settings, and the file in it."""
    for file in [ROOT / "params.yaml", *ROOT.glob("stages/*/params.yaml")]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    shutil.copy(qwen, "models/mine.gguf")
    return tmp_path


def output(capsys: pytest.CaptureFixture, *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        checks.main([*arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_check_says_of_a_file_what_it_says_of_the_folder_made_from_it(
    project: Path,
    capsys: pytest.CaptureFixture,
):
    file = [line for line in output(capsys, "models/mine.gguf", "--largest-operand", "34") if line]
    assert not Path("data").exists()
    source.convert(Path("models/mine.gguf"), Path("data/models/mine"))
    made = [line for line in output(capsys, "data/models/mine", "--largest-operand", "34") if line]
    assert file[0].startswith("file")
    facts = ("family", "parameters", "layers", "prompt", "answers", "operands", "BOS")
    of_file, of_folder = ([x for x in lines if x.split()[0] in facts] for lines in (file, made))
    assert len(of_file) >= len(facts) - 1
    assert of_file == of_folder
    assert "family        qwen2 (Qwen2ForCausalLM)" in file
    assert file[-1] == "It can be added: bag add NAME models/mine.gguf"


def test_a_file_is_added_with_the_stage_that_converts_it(project: Path):
    add.main(["mine", "models/mine.gguf", "--largest-operand", "34"])
    assert read()["gguf"] == {"mine": {"file": "models/mine.gguf"}}
    entry = load_subject("mine")
    assert (entry.source, entry.revision) == ("data/models/mine", "from models/mine.gguf")
    assert entry.dtype == "float64"
    assert check(Params, read()).gguf["mine"].file == "models/mine.gguf"
    with pytest.raises(ParamsError, match="has mine already, under"):
        add.main(["mine", "models/mine.gguf"])


def test_dvc_converts_it_before_what_reads_it(qwen: Path, tmp_path: Path):
    project = tmp_path / "whole"
    copy_project(project)
    for file in {*project.rglob("dvc.yaml")} - {project / "stages/subjects/dvc.yaml"}:
        file.unlink()  # DVC would read them all, which takes longer than the rest
    chapter = project / "stages/subjects/params.yaml"
    entry = f"gguf: {{mine: {{file: {json.dumps(str(qwen))}}}}}"
    chapter.write_text(chapter.read_text().replace("gguf: {}", entry))
    run_in(project, "dvc", "repro", "stages/subjects/dvc.yaml:gguf@mine")
    assert checkpoint.load(project / "data/models/mine", "float32", "cpu", 1).architecture.neurons
    lock = yaml.safe_load((project / "stages/subjects/dvc.lock").read_text())
    assert str(qwen) in [dep["path"] for dep in lock["stages"]["gguf@mine"]["deps"]]
