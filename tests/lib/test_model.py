"""Test loading, hook points, grid runs, prompts and value logits on tiny random models."""

import hashlib
import os
import random
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from stages.lib import ask
from stages.lib.model import (
    agreement,
    architecture,
    checkpoint,
    folder,
    search,
    tokenizer,
    value_logits,
)
from stages.lib.model.folder import ModelError, write_sums
from stages.store import grid
from stages.store import template as prompting
from tests.conftest import random_model
from tests.model_folders import Change, changed, stored, updated

FOUND = 2  # forward passes that find a model's parts, and what it does after its unembedding
OWN_ATTENTION = ("gptj",)  # families whose attention cannot be replaced


def loaded(folder: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(folder, "float32", "cpu", 1)


def square(side: int) -> np.ndarray:
    """Return tokens of `BOS op1 + op2 =`, with arbitrary ids, for operands 0..side-1.

    The shape is (side, side, 5).
    """
    tokens = np.zeros((side, side, 5), np.int64)
    tokens[..., 0], tokens[..., 2], tokens[..., 4] = 1, 120, 121
    tokens[..., 1], tokens[..., 3] = np.arange(side)[:, None] + 3, np.arange(side)[None] + 3
    return tokens


def test_captured_activations_recombine_to_the_output_of_the_mlp(checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    tokens = torch.arange(2, 12)[None]
    for layer in subject.architecture.layers:
        seen: dict[str, torch.Tensor] = {}
        handle = layer.mlp.register_forward_hook(
            lambda _, __, output, seen=seen: seen.__setitem__("output", output)
        )
        with architecture.patched(
            layer.mlp_out, lambda x, seen=seen: seen.__setitem__("activations", x)
        ):
            subject.model(input_ids=tokens)
        handle.remove()
        bias = layer.mlp_out.bias if layer.mlp_out.bias is not None else 0
        recombined = seen["activations"] @ architecture.value_vectors(layer) + bias
        assert seen["activations"].shape[-1] == subject.architecture.neurons
        torch.testing.assert_close(recombined, seen["output"], rtol=1e-5, atol=1e-5)


def test_sizes_are_those_of_the_configuration(checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    config, parts = subject.model.config, subject.architecture
    assert len(parts.layers) == config.num_hidden_layers
    assert parts.width == config.hidden_size
    assert parts.heads == config.num_attention_heads
    inputs = architecture.in_features(parts.layers[0].attention_out)
    assert parts.heads * parts.head_width == inputs
    assert parts.final_norm.weight.shape == (parts.width,)


def test_a_layer_that_writes_nothing_is_refused(kind: str):
    model = random_model(kind)
    parts = search.find(model)
    parts.layers[1].mlp_out.weight.zero_()
    with pytest.raises(
        architecture.ArchitectureError,
        match="layer 1: replacing the MLP's activations by zeros changes nothing",
    ):
        agreement.check(model, parts)


def test_a_model_cut_through_its_layers_is_refused(kind: str):
    model = random_model(kind)
    parts = search.find(model)
    # as if this process held half of each layer
    for whole in ({"neurons": 2 * parts.neurons}, {"heads": 2 * parts.heads}):
        with pytest.raises(
            architecture.ArchitectureError,
            match=r"layer 0: .* is given \d+ values of \d+: .*tensor parallelism",
        ):
            agreement.check(model, replace(parts, **whole))


def test_a_wrong_output_projection_is_refused(kind: str):
    model = random_model(kind)
    parts = search.find(model)
    wrong = replace(parts.layers[0], mlp_out=torch.nn.Linear(4, 4))
    with pytest.raises(architecture.ArchitectureError, match="layer 0"):
        agreement.check(model, replace(parts, layers=[wrong]))


def passes_of_load(folder: Path, dtype: str = "float32") -> int:
    """Return how many forward passes of whole models loading takes."""
    passes: list[object] = []

    def count(module: torch.nn.Module, _: object) -> None:
        if isinstance(module, PreTrainedModel) and module.base_model is not module:
            passes.append(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        checkpoint.load(folder, dtype, "cpu", 1)
    finally:
        handle.remove()
    return len(passes)


def test_a_model_that_passed_all_checks_is_not_checked_again(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    first = passes_of_load(checkpoint_folder)
    whole = loaded(checkpoint_folder)
    assert passes_of_load(checkpoint_folder) == FOUND < first
    shutil.rmtree(".cache")
    tokens = torch.arange(2, 12)[None]
    assert torch.equal(whole.last_logits(tokens), loaded(checkpoint_folder).last_logits(tokens))


@pytest.mark.parametrize("change", ["weights", "configuration", "dtype", "transformers"])
def test_a_changed_model_is_checked_again(
    change: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "mine")
    mine, dtype = Path("mine"), "float32"
    first = passes_of_load(mine)
    if change == "weights":
        updated("model.norm.weight", torch.ones(32))(mine)
    if change == "configuration":
        changed("config.json", rms_norm_eps=1e-3)(mine)
    if change == "dtype":
        dtype = "float64"
    if change == "transformers":
        # transformers replaces its own module, so that another `import` may give another one
        monkeypatch.setattr(checkpoint.transformers, "__version__", "5.0")
    assert passes_of_load(mine, dtype) == first
    assert passes_of_load(mine, dtype) == FOUND


def test_a_refused_model_is_refused_again(whole: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "mine")
    model = AutoModelForCausalLM.from_pretrained("mine")
    model.model.layers[1].mlp.down_proj.weight.data.zero_()
    model.save_pretrained("mine")
    for _ in range(2):
        with pytest.raises(architecture.ArchitectureError, match="changes nothing"):
            loaded(Path("mine"))


def test_layers_are_checked_without_forward_passes_of_their_own(kind: str):
    model = random_model(kind)
    passes: list[object] = []
    model.register_forward_pre_hook(lambda *_: passes.append(None))
    agreement.check(model, search.find(model))
    assert len(passes) <= 5


def test_a_layer_that_cannot_be_run_by_itself_is_checked_with_the_whole_model(kind: str):
    model = random_model(kind)
    parts = search.find(model)
    running: list[object] = []
    model.register_forward_pre_hook(lambda *_: running.append(None))
    model.register_forward_hook(lambda *_: running.clear())
    parts.layers[1].block.register_forward_pre_hook(lambda *_: running[0])
    agreement.check(model, parts)
    parts.layers[1].mlp_out.weight.zero_()
    with pytest.raises(
        architecture.ArchitectureError,
        match="layer 1: replacing the MLP's activations by zeros changes nothing",
    ):
        agreement.check(model, parts)


def test_an_unmerged_mixture_of_experts_is_refused():
    config = MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_local_experts=4,
    )
    with pytest.raises(architecture.ArchitectureError, match="layer 0"):
        search.find(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("way", [grid.Sharing.CACHE, grid.Sharing.ATTENTION])
def test_a_shared_prefix_changes_nothing(way: grid.Sharing, checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    tokens, answers = square(7), np.arange(49).reshape(7, 7) + 3
    answers[2, 3] = -1
    layers = list(range(len(subject.architecture.layers)))
    shared, plain = grid.Means.zeros(subject, 5), grid.Means.zeros(subject, 5)
    assert grid.shared_prefix(tokens) == 3
    if subject.model.config.model_type in OWN_ATTENTION and way is grid.Sharing.ATTENTION:
        assert grid.sharing(subject, tokens, (way,)) is grid.Sharing.NONE
        return
    assert grid.sharing(subject, tokens, (way,)) is way
    empty = np.full((subject.architecture.neurons, 7, 7), np.nan, np.float32)
    filled = {layer: empty.copy() for layer in layers}
    refilled = {layer: empty.copy() for layer in layers}
    fast = list(grid.run(subject, tokens, answers, 3, filled, shared, sharing=way))
    slow = list(grid.run(subject, tokens, answers, 2, refilled, plain, sharing=grid.Sharing.NONE))
    for layer in layers:
        np.testing.assert_allclose(filled[layer], refilled[layer], rtol=1e-4, atol=1e-5)
    for name in ("max_logit", "answer_logit", "answer_probability"):
        a = np.concatenate([getattr(predictions, name) for predictions in fast])
        b = np.concatenate([getattr(predictions, name) for predictions in slow])
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert np.isnan(a).sum() == (name != "max_logit")
    np.testing.assert_allclose(shared.neurons, plain.neurons, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(shared.heads, plain.heads, rtol=1e-4, atol=1e-4)


def test_grid_runs_equal_plain_forward_passes(checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    tokens, answers = square(4), np.arange(16).reshape(4, 4) + 3
    means = grid.Means.zeros(subject, 5)
    activations = {0: np.full((subject.architecture.neurons, 4, 4), np.nan, np.float16)}
    [predictions] = grid.run(subject, tokens, answers, 4, activations, means)
    flat = torch.from_numpy(tokens.reshape(16, 5))
    seen: list[torch.Tensor] = []
    with architecture.patched(subject.architecture.layers[0].mlp_out, seen.append):
        logits = subject.model(input_ids=flat).logits[:, -1]
    probabilities = logits.softmax(-1)[torch.arange(16), torch.from_numpy(answers.ravel())]
    np.testing.assert_array_equal(predictions.predicted, logits.argmax(-1).numpy())
    np.testing.assert_allclose(predictions.answer_probability, probabilities.numpy(), rtol=1e-4)
    stored, last = activations[0].reshape(-1, 16).T, seen[0][:, -1].numpy()
    np.testing.assert_allclose(stored, last, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(means.neurons[0] / 16, seen[0].mean(0).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bound", "size"),
    [("LOGITS", ask.LOGITS), ("LOGITS", 1 << 10), ("VALUES", 1 << 15)],
)
def test_prompts_of_any_length_give_what_they_give_alone(
    checkpoint_folder: Path, bound: str, size: int, monkeypatch: pytest.MonkeyPatch
):
    """Small bounds, in bytes, hold a prompt or two."""
    monkeypatch.setattr(ask, bound, size)
    subject = loaded(checkpoint_folder)
    prompts_in_pass = []
    subject.model.register_forward_pre_hook(
        lambda _, __, inputs: prompts_in_pass.append(len(inputs["input_ids"])), with_kwargs=True
    )
    rng = np.random.default_rng(0)
    sequences = [rng.integers(3, 100, length).tolist() for length in rng.integers(2, 12, 25)]
    answers = rng.integers(-1, 100, 25)
    predictions = ask.ask(subject, ask.EncodedPrompts(sequences, answers), 4, "test")
    assert (max(prompts_in_pass) == 4) == (size > 1 << 15)
    for i, sequence in enumerate(sequences):
        logits = subject.model(input_ids=torch.tensor([sequence])).logits[0, -1]
        assert predictions.predicted[i] == logits.argmax()
        np.testing.assert_allclose(predictions.max_logit[i], logits.max(), rtol=1e-4)
        expected = float(logits.softmax(-1)[answers[i]]) if answers[i] >= 0 else np.nan
        np.testing.assert_allclose(predictions.answer_probability[i], expected, rtol=1e-4)


def test_a_model_that_gives_nan_is_an_error():
    with pytest.raises(FloatingPointError, match="not finite"):
        ask.read_off(torch.tensor([[0.0, float("nan")]]), torch.tensor([0]))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(2, 5),
    st.integers(2, 6),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)
def test_the_shared_prefix_is_the_longest(
    rows: int, columns: int, positions: int, shared: int, seed: int
):
    tokens = np.random.default_rng(seed).integers(0, 1000, (rows, columns, positions))
    shared = min(shared, positions)
    tokens[:, :, :shared] = tokens[:, :1, :shared]
    length = grid.shared_prefix(tokens)
    assert min(shared, positions - 1) <= length <= positions - 1
    assert (tokens[:, :, :length] == tokens[:, :1, :length]).all()


def test_value_logits_are_what_a_neuron_adds_to_the_logits(checkpoint_folder: Path):
    """If the final norm's scale is fixed, a neuron adds its value logits, up to a constant."""
    subject = loaded(checkpoint_folder)
    parts, tokens = subject.architecture, list(range(3, 103))
    logits = np.stack(list(value_logits.value_logits(subject, tokens)))
    assert logits.shape == (len(parts.layers), parts.neurons, 100)
    torch.manual_seed(1)
    residual, layer, neuron = torch.randn(parts.width, dtype=torch.float64) * 3, 1, 5
    added = architecture.value_vectors(parts.layers[layer])[neuron].double()
    post_norm = parts.layers[layer].post_norm
    if post_norm is not None:  # the direction of what is added; its length depends on the prompt
        added = added * post_norm.weight.double()
    norm, unembedding = parts.final_norm.double(), parts.unembedding.weight.double()
    is_centred = isinstance(norm, torch.nn.LayerNorm)
    epsilon = getattr(norm, "eps", getattr(norm, "variance_epsilon", 0))

    def scale(x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean() * is_centred
        return (centred.square().mean() + epsilon).sqrt()

    def scaled_logits(x: torch.Tensor) -> torch.Tensor:
        normal = norm(x)
        if getattr(norm, "bias", None) is not None:
            normal = normal - norm.bias
        return normal @ unembedding.T * scale(x)

    change = scaled_logits(residual + added) - scaled_logits(residual)
    expected = (change - change.mean())[tokens]
    np.testing.assert_allclose(logits[layer, neuron], expected.numpy(), rtol=1e-3, atol=1e-4)


def test_positions_are_located_in_any_template():
    own = tokenizer.build(99, ["Q : What is + = ( )"])
    template = prompting.Template(own, "Q: What is {op1} {symbol} {op2} =", "+", bos=True)
    assert template.positions == {
        "op1_position": 5,
        "operator_position": 6,
        "op2_position": 7,
        "last_position": 8,
    }
    tokens = template.square(range(12))
    assert tokens[3, 11].tolist() == own("Q: What is 3 + 11 =")["input_ids"]
    assert grid.shared_prefix(tokens) == 7


def test_the_largest_operand_follows_from_the_tokenizer():
    own = tokenizer.build(42, ["+ ="])
    template = prompting.Template(own, "{op1}{symbol}{op2}=", "+", bos=False)
    answers = template.answers(999)
    assert own.convert_ids_to_tokens(answers) == [str(n) for n in range(43)]
    with pytest.raises(
        prompting.PromptError, match=r"operand 43 is not one token.*cells\.largest_operand"
    ):
        template.square(range(50))


def test_our_own_tokenizer_can_write_digits_and_end_an_answer():
    own = tokenizer.build(42, ["Q : What is + ="], digits=True)
    assert (
        " ".join(own.convert_ids_to_tokens(own("Q: What is 205 + 7 =")["input_ids"]))
        == "<s> Q : What is 2 0 5 + 7 ="
    )
    assert [own.decode([token]) for token in range(4, 14)] == list("0123456789")
    assert (own.eos_token, tokenizer.build(42, ["+ ="]).eos_token) == ("</s>", None)


def test_a_tokenizer_without_bos_is_an_error():
    own = tokenizer.build(9, ["+ ="])
    own.bos_token = None
    with pytest.raises(prompting.PromptError, match="bos: false"):
        prompting.Template(own, "{op1}{symbol}{op2}=", "+", bos=True)


def test_a_missing_model_folder_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"no model folder at .*nowhere"):
        checkpoint.load(tmp_path / "nowhere", "float32", "cpu", 1)


def damaged(folder: Path, change: Change) -> Path:
    random_model("llama").save_pretrained(folder)
    tokenizer.build(99, ["+ - * / = ( ) Q"]).save_pretrained(folder)
    change(folder)
    return folder


DOWN = "model.layers.1.mlp.down_proj.weight"
DAMAGED: dict[str, Change] = {
    "1 of its tensors that config.json asks for are missing": stored(lambda t: t.pop(DOWN)),
    "1 of its tensors have no place": stored(lambda t: t.update(other=torch.zeros(3))),
    "can be loaded": stored(lambda t: t.update({DOWN: torch.zeros(3, 3)})),
    "9 of its tensors .* missing": changed("config.json", num_hidden_layers=4),
    "9 of its tensors have no place": changed("config.json", num_hidden_layers=2),
    "no causal language model": changed("config.json", model_type="no-such"),
    "60 of its tensors .* missing": changed(
        "config.json", model_type="bert", architectures=["BertModel"]
    ),
    "holds no weights": lambda folder: (folder / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_damaged_model_folder_is_refused_in_a_sentence(tmp_path: Path, message: str):
    folder = damaged(tmp_path / "llama", DAMAGED[message])
    with pytest.raises(ModelError, match=message) as refused:
        loaded(folder)
    assert str(folder) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe"])
def test_a_folder_without_a_tokenizer_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes | None
):
    def change(folder: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        if content is not None:
            (folder / "tokenizer.json").write_bytes(content)

    folder = damaged(tmp_path / "llama", change)
    message = "has no tokenizer that can be loaded|is empty"
    with pytest.raises(ModelError, match=message) as refused:
        tokenizer.load(folder)
    assert len(str(refused.value).splitlines()) == 1


def test_code_in_a_model_folder_is_never_run(tmp_path: Path):
    own = {
        "auto_map": {
            "AutoConfig": "own.Config",
            "AutoModelForCausalLM": "own.Model",
            "AutoTokenizer": ["own.Tokenizer", None],
        }
    }

    def change(folder: Path) -> None:
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        changed("config.json", **own, model_type="own")(folder)
        changed("tokenizer_config.json", **own, tokenizer_class="Own")(folder)

    folder = damaged(tmp_path / "llama", change)
    with pytest.raises(ModelError):
        loaded(folder)
    with suppress(ModelError):
        tokenizer.load(folder)
    assert not (tmp_path / "ran").exists()


def test_any_changed_byte_of_a_folder_with_sums_is_refused_by_name(tmp_path: Path):
    folder = damaged(tmp_path / "llama", write_sums)
    loaded(folder)
    rolls = random.Random(0)
    files = [file for file in folder.iterdir() if file.name != "SHA256SUMS"]
    for file in files * 8:
        whole = bytearray(file.read_bytes())
        changed_bytes = bytearray(whole)
        changed_bytes[rolls.randrange(len(whole))] ^= 1 << rolls.randrange(8)
        file.write_bytes(changed_bytes)
        message = f"{file.name} is not the file that .*SHA256SUMS lists"
        for load in (loaded, tokenizer.load):
            with pytest.raises(ModelError, match=message):
                load(folder)
        file.write_bytes(whole)
    loaded(folder)


def test_sums_that_are_taken_again_list_themselves(tmp_path: Path):
    """`sha256sum * > SHA256SUMS` empties an existing list before it takes its digest."""
    folder = damaged(tmp_path / "llama", write_sums)
    sums = folder / "SHA256SUMS"
    sums.write_text(f"{hashlib.sha256().hexdigest()}  SHA256SUMS\n{sums.read_text()}")
    loaded(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json is not the file that .*SHA256SUMS lists"):
        loaded(folder)


def test_a_large_vocabulary_is_centred_some_tokens_at_a_time(
    checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    subject = loaded(checkpoint_folder)
    whole = np.stack(list(value_logits.value_logits(subject, [3, 50, 99])))
    monkeypatch.setattr(value_logits, "AT_ONCE", 17)
    parts = np.stack(list(value_logits.value_logits(subject, [3, 50, 99])))
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)


def test_the_digest_of_a_large_file_is_taken_once_for_every_change_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "LARGE", 4)
    read: list[list[Path]] = []
    usual = folder._digest

    def counted(files: list[Path]) -> str:
        read.append(files)
        return usual(files)

    monkeypatch.setattr(folder, "_digest", counted)
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    before = file.stat()
    first = folder.sha256([file])
    assert folder.sha256([file]) == first == usual([file])
    assert len(read) == 1
    file.write_bytes(b"Weights")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert folder.sha256([file]) == usual([file]) != first
    digest, cache = folder.sha256([file]), Path(".cache/sha256")
    [kept] = [path for path in cache.iterdir() if path.read_text() == digest]
    kept.write_text("")
    assert folder.sha256([file]) == usual([file])
    small = tmp_path / "small"
    small.write_bytes(b"x")
    assert folder.sha256([small]) == folder.sha256([small])
    assert len(list(cache.iterdir())) == 2


def own_tokenizer(extra: list[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the numbers 0..99, signs, the blank and `extra`.

    All other numbers are one token that the tokenizer does not call unknown.
    """
    pieces = ["<s>", *" +-*/=", *map(str, range(100)), *extra]
    numbers = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<s>"))
    token = Regex("|".join([*map(re.escape, extra), r"\d+", "."]))
    made.pre_tokenizer = pre_tokenizers.Split(token, behavior="removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


def test_a_blank_that_is_a_token_of_its_own_belongs_to_the_prompt():
    """As in Llama 3, whose numbers never begin with a blank."""
    own = own_tokenizer([])
    prompts = ask.encode(own, ["4 + 3 =", "4+3="], ["7", "7"], bos=True)
    names = list(map(own.convert_ids_to_tokens, prompts.sequences))
    assert names == [["<s>", *"4 + 3 = "], ["<s>", *"4+3= "]]
    assert own.convert_ids_to_tokens(prompts.answers.tolist()) == ["7", "7"]


def test_an_answer_of_several_tokens_is_split_before_the_asked_token():
    own = tokenizer.build(9, ["+ ="], digits=True)
    for place, (sequence, answer) in enumerate([("<s> 8 + 4 =", "1"), ("<s> 8 + 4 = 1", "2")]):
        prompts = ask.encode(own, ["8 + 4 ="], ["12"], None, answer_token=place)
        assert " ".join(own.convert_ids_to_tokens(prompts.sequences[0])) == sequence
        assert own.convert_ids_to_tokens(prompts.answers.tolist()) == [answer]
    for unknown in (
        ask.encode(own, ["8 + 4 ="], ["12"], None),
        ask.encode(own, ["1"], ["x"], None),
    ):
        assert unknown.answers.tolist() == [-1]


def test_an_answer_that_is_read_with_the_end_of_the_prompt_is_refused():
    with pytest.raises(
        prompting.PromptError,
        match=r"in '1\+1=7' the tokenizer puts the end of the prompt and the answer into one token",
    ):
        prompting.Template(own_tokenizer(["=7"]), "{op1}{symbol}{op2}=", "+", True).answers(50)


def test_numbers_that_are_one_and_the_same_token_are_refused():
    """The tokenizer gives all numbers that it does not know one token, which it does not name."""
    template = prompting.Template(own_tokenizer([]), "{op1}{symbol}{op2}=", "+", True)
    assert len(template.answers(99)) == 100
    with pytest.raises(
        prompting.PromptError, match="the tokenizer gives 101 the same token as 100"
    ):
        template.answers(150)
    with pytest.raises(
        prompting.PromptError, match=r"in '101\+1=' operand 101 is the same token as 100"
    ):
        template.square(range(120))
