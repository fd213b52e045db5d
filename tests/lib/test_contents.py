"""Test which files of a model folder are loaded and have digests, and which folders are refused."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CodeGenConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
)

from stages.lib.model import checkpoint, contents, tokenizer
from stages.lib.model.folder import INDEX, WEIGHTS, ModelError, sha256, write_sums
from tests import vocabularies
from tests.micro import ROOT
from tests.model_folders import Change, changed, stored, updated

END = "<|endoftext|>"


@pytest.fixture
def mine(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "mine"))


def moved(target: str, index: str | None = None) -> Change:
    """Rename the weights. index: their name in an index file, None for no index."""

    def write(folder: Path) -> None:
        names = list(load_file(folder / WEIGHTS))
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / WEIGHTS).rename(folder / target)
        if index is not None:
            content = {"metadata": {}, "weight_map": dict.fromkeys(names, index)}
            (folder / INDEX).write_text(json.dumps(content))

    return write


def replaced(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def linked(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../../blobs/none")


def shards(folder: Path, change: Callable[[dict[str, str]], object] = lambda shards: None) -> None:
    """Split the weights into two shards. change: changes the index's weight_map."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    files: dict[str, str] = {}
    for number, shard in enumerate((names[:6], names[6:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in shard}, folder / file, {"format": "pt"})
        files |= dict.fromkeys(shard, file)
    (folder / WEIGHTS).unlink()
    change(files)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def foreign_shard(folder: Path) -> None:
    """Store a tensor of the first shard in the second shard as well."""
    shards(folder)
    first = load_file(folder / "model-00001-of-00002.safetensors")
    file = folder / "model-00002-of-00002.safetensors"
    name = min(first)
    save_file({**load_file(file), name: first[name]}, file, {"format": "pt"})


def two_models(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "one.safetensors")
    moved("two.safetensors", "one.safetensors")(folder)
    (folder / "two.safetensors").rename(folder / WEIGHTS)


def other_shard(folder: Path) -> None:
    shards(folder, lambda files: files.update(other=next(iter(files.values()))))


def pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def larger_tokenizer(folder: Path) -> None:
    tokenizer.build(999, ["+ - * / ="]).save_pretrained(folder)


def slow_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    replaced("tokenizer_config.json", b'{"tokenizer_class": "ByT5Tokenizer"}')(folder)


def cast(dtype: torch.dtype) -> Change:
    return stored(lambda tensors: tensors.update({DOWN: tensors[DOWN].to(dtype)}))


def many_tensors(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({f"x{i}": torch.zeros(1) for i in range(5000)})


def long_header(file: Path, length: int) -> None:
    file.write_bytes(length.to_bytes(8, "little"))
    os.truncate(file, 8 + length)


def enlarged(name: str) -> Change:
    """Enlarge a file to 1 TiB; it is sparse, so it takes no room on the disk."""

    def change(folder: Path) -> None:
        (folder / name).touch()
        os.truncate(folder / name, 1 << 40)

    return change


def large_index(folder: Path) -> None:
    shards(folder)
    enlarged(INDEX)(folder)


def large_header(folder: Path) -> None:
    replaced(WEIGHTS, ((16 << 20) + 1).to_bytes(8, "little"))(folder)
    enlarged(WEIGHTS)(folder)


def large_headers(folder: Path) -> None:
    names = {f"x{i}": f"x{i}.safetensors" for i in range(3)}
    shards(folder, lambda files: files.update(names))
    for name in names.values():
        long_header(folder / name, 12_000_000)


def many_shards(folder: Path) -> None:
    names = {f"x{i}": f"x{i}.safetensors" for i in range(9_999)}
    shards(folder, lambda files: files.update(names))


def many_files(folder: Path) -> None:
    for i in range(10_001):
        os.link(folder / "config.json", folder / f"{i}")


def generation_pipe(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    os.mkfifo(folder / "generation_config.json")


def float8_without_scale(folder: Path) -> None:
    cast(torch.float8_e4m3fn)(folder)
    changed("config.json", quantization_config={"quant_method": "fp8"})(folder)


DOWN = "model.layers.1.mlp.down_proj.weight"
OUTSIDE, DEEPER = "../outside.safetensors", "deeper/model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
REFUSED: dict[str, Change] = {
    "merge the adapter first (`merge_and_unload`)": replaced(
        "adapter_config.json", b'{"peft_type": "LORA"}'
    ),
    "adapter_model.bin is an adapter": replaced("adapter_model.bin", b"x"),
    f"names {OUTSIDE!r}; only safetensors files of the folder": moved(OUTSIDE, OUTSIDE),
    f"names {DEEPER!r}": moved(DEEPER, DEEPER),
    "names '/outside.safetensors'": moved("other.safetensors", "/outside.safetensors"),
    "names '..'": moved("other.safetensors", ".."),
    "names 7": moved("other.safetensors", 7),  # type: ignore[arg-type]
    "names 'weights.bin'": moved("weights.bin", "weights.bin"),
    "none.safetensors is missing, which": moved("other.safetensors", "none.safetensors"),
    "its weight_map is empty": replaced(INDEX, b'{"weight_map": {}}'),
    "is not an index of weights": replaced(INDEX, b"[]"),
    "holds two models": two_models,
    "shards of different models": foreign_shard,
    "it is a shard of another model": other_shard,
    "names other weights (transformers_weights)": changed(
        "config.json", transformers_weights="adapter_model.bin"
    ),
    f"{DOWN} is stored as I8": cast(torch.int8),
    f"{DOWN} is stored as U8": cast(torch.uint8),
    f"{DOWN} is stored as F8_E4M3": cast(torch.float8_e4m3fn),
    "asks for 1,000,000,000 layers": changed("config.json", num_hidden_layers=10**9),
    "asks for 1,000,000,001 layers": changed("config.json", text_config={"n_layers": 10**9 + 1}),
    "far more than a model of 3 layers has": stored(many_tensors),
    "asks for 1,000,000,000 labels": changed("config.json", num_labels=10**9),
    f"{DOWN} is stored as F8_E4M3 without its scale": float8_without_scale,
    "generation_config.json is not a file but a pipe": generation_pipe,
    "holds more than 10,000 files": many_files,
    f"{INDEX} has 1,099,511,627,776 bytes": large_index,
    "SHA256SUMS has 1,099,511,627,776 bytes": enlarged("SHA256SUMS"),
    "names 10,001 files; at most 10,000": many_shards,
    "its header has 16,777,217 bytes; at most 16,777,216": large_header,
    "headers of its safetensors files have 36,00": large_headers,
    "pytorch_model.bin is a pickle, which may run code": moved("pytorch_model.bin"),
    "consolidated.safetensors without": moved("consolidated.safetensors"),
    "model.gguf has another format": moved("model.gguf"),
    "which does not exist": linked,
    "model.safetensors is a pointer of Git LFS": replaced(WEIGHTS, POINTER),
    "config.json is a pointer of Git LFS": replaced("config.json", POINTER),
    "model.safetensors is empty": replaced(WEIGHTS, b""),
    "config.json is empty": replaced("config.json", b""),
    "or is truncated": replaced(WEIGHTS, b"\x02\0\0"),
    "its header describes": lambda folder: os.truncate(folder / WEIGHTS, 60_000),
    "its header cannot be read": replaced(WEIGHTS, b"\x02\0\0\0\0\0\0\0[]"),
    "config.json is not JSON": replaced("config.json", b"\xff\xfe{\0"),
    "config.json is not an object": replaced("config.json", b"[1]"),
    "it has no config.json": lambda folder: (folder / "config.json").unlink(),
    "config.json is not a file": pipe,
}
REFUSED_TOKENIZERS: dict[str, Change] = {
    "tokenizer.json has 1,099,511,627,776 bytes; at most 37,748,736": enlarged("tokenizer.json"),
    "tokenizer.json is a pointer of Git LFS": replaced("tokenizer.json", POINTER),
    "tokenizer.model (SentencePiece) and no tokenizer.json": sentencepiece,
    "and the model has embeddings of tokens 0 to 139": larger_tokenizer,
    "ByT5Tokenizer does not say which token is which part of a text": slow_tokenizer,
}


@pytest.mark.parametrize("scale", ["_scale_inv", "_scale"])
def test_8_bit_floats_with_scales_are_accepted(mine: Path, scale: str):
    tensors = load_file(mine / WEIGHTS)
    tensors |= {DOWN: tensors[DOWN].to(torch.float8_e4m3fn), DOWN + scale: torch.ones(1)}
    save_file(tensors, mine / WEIGHTS, {"format": "pt"})
    changed("config.json", quantization_config={"quant_method": "fp8"})(mine)
    contents.check(mine)


@pytest.mark.parametrize("message", REFUSED)
def test_a_folder_that_would_be_misread_is_refused(mine: Path, message: str):
    REFUSED[message](mine)
    with pytest.raises(ModelError, match=re.escape(message)) as refused:
        checkpoint.read(mine)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("message", REFUSED_TOKENIZERS)
def test_a_tokenizer_that_would_be_misread_is_refused(mine: Path, message: str):
    REFUSED_TOKENIZERS[message](mine)
    with pytest.raises(ModelError, match=re.escape(message)) as refused:
        tokenizer.load(mine)
    assert len(str(refused.value).splitlines()) == 1


def test_prompts_longer_than_the_positions_are_refused(mine: Path):
    changed("config.json", max_position_embeddings=4)(mine)
    contents.limits(mine).check_length(4)
    with pytest.raises(
        ModelError,
        match="the longest prompt has 5 tokens, and the model has 4 positions",
    ):
        contents.limits(mine).check_length(5)


def test_digests_cover_only_the_files_that_are_loaded(mine: Path):
    single = checkpoint.fingerprint(mine)["weights_sha256"]
    assert single == sha256([mine / WEIGHTS])
    (mine / "consolidated.safetensors").write_bytes(b"of another library")
    assert checkpoint.fingerprint(mine)["weights_sha256"] == single
    logits = checkpoint.parity_digest(checkpoint.load(mine, "float32", "cpu", 1))
    shards(mine)
    files = [mine / INDEX, *sorted(mine.glob("model-*.safetensors"))]
    assert checkpoint.fingerprint(mine)["weights_sha256"] == sha256(files)
    assert checkpoint.parity_digest(checkpoint.load(mine, "float32", "cpu", 1)) == logits
    write_sums(mine)
    sums = mine / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.open() if files[2].name not in line))
    with pytest.raises(ModelError, match=f"does not list {files[2].name}, which is loaded"):
        checkpoint.read(mine)


def test_a_snapshot_of_links_into_blobs_is_read(mine: Path, tmp_path: Path):
    snapshot, blobs = tmp_path / "hub/snapshots/0", tmp_path / "hub/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(mine.iterdir())):
        shutil.move(file, blobs / f"{i:064}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i:064}")
    checkpoint.read(snapshot)
    tokenizer.load(snapshot)


SIZES = {"vocab_size": 300, "bos_token_id": 299, "eos_token_id": 299}
GPT = {
    "GPT2Tokenizer": (
        lambda: GPT2Config(**SIZES, n_embd=16, n_layer=1, n_head=2, n_positions=8),
        "transformer.h.0.attn.",
        ("bias", "masked_bias"),
    ),
    "GPTNeoXTokenizer": (
        lambda: GPTNeoXConfig(
            **SIZES,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
        ),
        "gpt_neox.layers.0.attention.",
        ("bias", "masked_bias", "rotary_emb.inv_freq"),
    ),
    "gptj": (
        lambda: GPTJConfig(**SIZES, n_embd=16, n_layer=1, n_head=2, rotary_dim=4, n_positions=8),
        "transformer.h.0.attn.",
        ("bias", "masked_bias"),
    ),
    "gpt_neo": (
        lambda: GPTNeoConfig(
            **SIZES,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            attention_types=[[["global"], 1]],
            max_position_embeddings=8,
        ),
        "transformer.h.0.attn.attention.",
        ("bias", "masked_bias"),
    ),
    "CodeGenTokenizer": (
        lambda: CodeGenConfig(**SIZES, n_embd=16, n_layer=1, n_head=4, rotary_dim=4, n_positions=8),
        "transformer.h.0.attn.",
        ("causal_mask",),
    ),
}
BUFFERS = {
    "bias": torch.ones(8, 8, dtype=torch.bool).tril()[None, None],
    "causal_mask": torch.ones(8, 8, dtype=torch.uint8).tril()[None, None],
    "masked_bias": torch.tensor(-1e9),
    "rotary_emb.inv_freq": torch.ones(2),
}


def byte_level(split: str | None) -> Tokenizer:
    """Make a byte-level tokenizer like GPT-2's, whose BOS, EOS and unknown token are the same."""
    merges = [("2", "2"), ("22", "6"), ("6", "8")]
    backend = vocabularies.merged(merges, split, bos=False).backend_tokenizer
    backend.add_special_tokens([END])
    return backend


@pytest.mark.parametrize("family", GPT)
def test_only_the_masks_of_old_files_of_gpt_are_ignored(
    tmp_path: Path,
    family: str,
):
    config, place, names = GPT[family]
    model = AutoModelForCausalLM.from_config(config())
    model.save_pretrained(tmp_path)
    byte_level(None).save(str(tmp_path / "tokenizer.json"))
    named = {"tokenizer_class": family if family.endswith("Tokenizer") else "GPT2Tokenizer"}
    settings = named | dict.fromkeys(["bos_token", "eos_token", "unk_token"], END)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    buffers = {place + name: BUFFERS[name] for name in names}
    stored(lambda tensors: tensors.update(buffers))(tmp_path)
    read = checkpoint.read(tmp_path, dtype=torch.float32)
    for name, parameter in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], parameter)
    own = tokenizer.load(tmp_path)
    assert own.bos_token == END
    assert tokenizer.front(own, None) == []
    assert tokenizer.front(own, True) == [own.bos_token_id]
    assert tokenizer.knows(own, f"{END}226-68=")
    updated(f"{place}new.bias", torch.zeros(16))(tmp_path)
    with pytest.raises(ModelError, match=rf"1 of its tensors have no place .*: {place}new.bias"):
        checkpoint.read(tmp_path, dtype=torch.float32)


def test_a_bias_is_not_a_mask(mine: Path):
    updated("model.layers.0.self_attn.bias", torch.zeros(32))(mine)
    with pytest.raises(ModelError, match=r"1 of its tensors have no place .*self_attn\.bias"):
        checkpoint.read(mine)


TEXTS = ["226-68=", "1 + 226 = ", "Q: 12*3=\n", " 68"]


@pytest.mark.parametrize(
    "kind",
    [
        "GPT2Tokenizer",
        "GPTNeoXTokenizerFast",
        "CodeGenTokenizer",
        "GemmaTokenizer",
        "LlamaTokenizer",
        "Qwen2Tokenizer",
    ],
)
def test_tokens_are_those_of_tokenizer_json_for_any_class(tmp_path: Path, kind: str):
    """transformers rebuilds the tokenizer from the name of its class."""
    marks = vocabularies.by_digit_behind_a_mark().backend_tokenizer
    marks.normalizer = None  # no mark before a text
    marks.add_tokens(["226"])
    rebuilt_otherwise = 0
    for written in (byte_level(None), byte_level(r"\p{N}"), marks):
        written.save(str(tmp_path / "tokenizer.json"))
        flags = ("special", "lstrip", "rstrip", "normalized", "single_word")
        more = {"900": {"content": "68", **dict.fromkeys(flags, False)}}
        settings = {"tokenizer_class": kind, "added_tokens_decoder": more}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        own = tokenizer.load(tmp_path)
        rebuilt = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
        for text in TEXTS:
            tokens = written.encode(text, add_special_tokens=False).ids
            assert own(text, add_special_tokens=False)["input_ids"] == tokens
            try:
                rebuilt_otherwise += rebuilt.encode(text, add_special_tokens=False).ids != tokens
            except Exception:  # the rebuilt tokenizer may lack its own unknown token
                rebuilt_otherwise += 1
    assert rebuilt_otherwise


@pytest.mark.parametrize(
    ("single", "before", "after"),
    [
        ("$A", [], []),
        ("<s> $A", ["<s>"], []),
        ("<unk> <s> $A <unk>", ["<unk>", "<s>"], ["<unk>"]),
        ("$A <unk>", [], ["<unk>"]),
    ],
)
def test_the_tokens_around_a_prompt_are_those_that_the_tokenizer_adds(
    mine: Path,
    single: str,
    before: list[str],
    after: list[str],
):
    written = Tokenizer.from_file(str(mine / "tokenizer.json"))
    special = [(name, written.token_to_id(name)) for name in ("<s>", "<unk>")]
    written.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B",
        special_tokens=special,
    )
    written.save(str(mine / "tokenizer.json"))
    own = tokenizer.load(mine)
    around = [own.convert_ids_to_tokens(tokens) for tokens in tokenizer.around(own)]
    assert around == [before, after]
    assert own.convert_ids_to_tokens(tokenizer.front(own, None)) == before
    assert own.convert_ids_to_tokens(tokenizer.front(own, True)) == ["<s>"]
    assert tokenizer.front(own, False) == []


def test_the_notes_of_hf_download_rerun_nothing(
    mine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """`hf download --local-dir`, repeated, rewrites the files below .cache."""
    from dvc.repo import Repo  # imported late, because it loads half of DVC

    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / ".dvcignore", tmp_path)
    stages = "stages: {read: {cmd: cp mine/config.json out, deps: [mine], outs: [out]}}"
    (tmp_path / "dvc.yaml").write_text(stages)
    notes = mine / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / "config.json.metadata").write_text("today")
    Repo.init(no_scm=True)
    Repo().reproduce()
    (notes / "config.json.metadata").write_text("tomorrow")
    assert Repo().status() == {}
    (mine / "config.json").write_text("{}")
    assert "mine" in str(Repo().status())
