"""Try random combinations of family, tokenizer, template, dtype and damage.

Each combination must be refused with one sentence, or agree with plain forward passes.
`python -m tests.combinations [NUMBER] [SEED]` counts the outcomes; tests/lib/test_combinations.py
tries some. The reference is transformers' own loader and forward pass, the tokenizer's own text,
and hooks on modules by name.
"""

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from stages.lib.model import checkpoint, tokenizer
from stages.lib.model.folder import ModelError, write_sums
from stages.store import grid
from stages.store.template import PromptError, Template
from tests import families
from tests.lib.test_model import own_tokenizer

TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "words": lambda: tokenizer.build(99, ["+ - * / = ( ) Q : What is"]),
    "few words": lambda: tokenizer.build(12, ["+ - * / ="]),
    "no BOS": lambda: _without_bos(tokenizer.build(99, ["+ - * / = ( ) Q : What is"])),
    "BOS is unknown": lambda: own_tokenizer([]),
    "= merges with 7": lambda: own_tokenizer(["=7"]),
    "3 merges with +": lambda: own_tokenizer(["3+"]),
}
TEMPLATES = [
    "{op1}{symbol}{op2}=",
    "{op1} {symbol} {op2} =",
    "Q: What is {op1} {symbol} {op2} =",
    "({op1}{symbol}{op2})=",
]
# largest difference between two ways to compute, as a share of the largest value
ALLOWED = {"float64": 1e-5, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
EXACT = ("float64", "float32")
OPERANDS, LARGEST = range(4), 20


@dataclass(frozen=True)
class Combination:
    """A combination. sums: whether SHA256SUMS was written before the damage."""

    family: str
    tokenizer: str
    template: str
    bos: bool
    dtype: str
    damage: str
    sums: bool

    def __str__(self) -> str:
        bos = "BOS" if self.bos else "no BOS"
        sums = "sums" if self.sums else "no sums"
        model = f"{self.family}, {self.tokenizer}, {self.template!r}, {bos}"
        return f"{model}, {self.dtype}, {self.damage}, {sums}"


class WrongError(AssertionError):
    """A result that is wrong without an error."""


def random_combination(random_numbers: random.Random) -> Combination:
    """Draw a combination; half of them have no damage."""
    choice = random_numbers.choice
    damage = choice([*DAMAGES, *["none"] * len(DAMAGES)])
    return Combination(
        family=choice(families.NAMES),
        tokenizer=choice([*TOKENIZERS]),
        template=choice(TEMPLATES),
        bos=random_numbers.random() < 0.7,
        dtype=choice([*ALLOWED]),
        damage=damage,
        sums=random_numbers.random() < 0.2,
    )


def outcome(combination: Combination, folder: Path, seed: int) -> str:
    """Return "exact", "refused: …" or "not tried" (transformers cannot make the model).

    Raises WrongError, or any other exception that should have been a sentence.
    """
    family, more = families.VARIANTS.get(combination.family, (combination.family, {}))
    try:
        model = families.random_model(family, **more)
        model.save_pretrained(folder)
        plain(folder, "float32", torch.zeros((1, 2), dtype=torch.long))
    except Exception:
        return "not tried"
    TOKENIZERS[combination.tokenizer]().save_pretrained(folder)
    if combination.sums:
        write_sums(folder)
    before = _bytes(folder)
    DAMAGES[combination.damage](folder, random.Random(seed))
    try:
        own = tokenizer.load(folder)
        loaded = checkpoint.load(folder, combination.dtype, "cpu", 1)
        if combination.sums and _bytes(folder) != before:
            raise WrongError("a changed file was taken for the one that SHA256SUMS lists")
        _compare(loaded, own, combination, folder)
    except (ModelError, PromptError, FloatingPointError) as error:
        text = str(error)  # carry_out prints a FloatingPointError as a sentence, too
        if len(text.splitlines()) != 1 or len(text) > 700:
            raise WrongError(f"the error is not one sentence: {text}") from None
        return f"refused: {text}"
    return "exact"


def _compare(
    loaded: checkpoint.Checkpoint, own: Any, combination: Combination, folder: Path
) -> None:
    """Run a small grid as the stages prompts and dump do, and compare it with plain passes."""
    template = Template(own, combination.template, "+", combination.bos)
    tokens, answers = template.square(OPERANDS), template.answers(LARGEST)
    checkpoint.knows(loaded, np.append(tokens.ravel(), answers))
    _compare_tokens(tokens, answers, own, combination)
    sums = np.minimum(np.add.outer(OPERANDS, OPERANDS), len(answers) - 1)
    expected = np.array(answers)[sums]
    neurons, layers = loaded.architecture.neurons, loaded.architecture.layers
    activations = {}
    for layer in range(len(layers)):
        activations[layer] = np.zeros((neurons, *tokens.shape[:2]), np.float32)
    means, sharing = grid.Means.zeros(loaded, tokens.shape[2]), grid.sharing(loaded, tokens)
    passes = [*grid.run(loaded, tokens, expected, 2, activations, means, sharing=sharing)]
    names = {module: name for name, module in loaded.model.named_modules()}
    modules = [names.get(layer.mlp_out, "") for layer in layers]
    sequences = torch.from_numpy(tokens.reshape(-1, tokens.shape[2]))
    logits, inputs = plain(folder, combination.dtype, sequences, modules)
    largest = np.concatenate([part.max_logit for part in passes])
    close(largest, logits.max(-1), combination.dtype, "largest logits")
    of_answers = np.concatenate([part.answer_logit for part in passes])
    own_logits = logits[np.arange(len(logits)), expected.ravel()]
    close(of_answers, own_logits, combination.dtype, "answers' logits")
    for layer, reference in inputs.items():
        # a mixture's experts are concatenated here, and no module has all of them
        if reference.shape[-1] == neurons:
            values = activations[layer].reshape(neurons, -1).T
            close(values, reference, combination.dtype, f"activations of layer {layer}")


def _compare_tokens(
    tokens: np.ndarray, answers: list[int], own: Any, combination: Combination
) -> None:
    """Compare the tokens of prompts and answers with the tokenizer's own encoding of the text."""
    front = [own.bos_token_id] if combination.bos else []

    def encoded(text: str) -> list[int]:
        return front + own(text, add_special_tokens=False)["input_ids"]

    def prompt(op1: int, op2: int) -> str:
        return combination.template.format(op1=op1, op2=op2, symbol="+")

    for op1, op2 in np.ndindex(tokens.shape[:2]):
        text = prompt(op1, op2)
        _same(tokens[op1, op2].tolist(), encoded(text), f"tokens of {text!r}")
    text = prompt(1, 1)
    for number, token in enumerate(answers):
        _same(own.decode([token]).strip(), str(number), "an answer's token")
        whole = [*tokens[1, 1].tolist(), token]
        _same(whole, encoded(f"{text}{number}"), "an answer's place")


def plain(
    folder: Path, dtype: str, tokens: torch.Tensor, names: list[str] | None = None
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Run whole passes of transformers' own model.

    tokens: (prompts, positions); names: of a module of each layer. Returns last-position logits
    (prompts, vocabulary), and layer -> the module's last-position input. Raises WrongError if that
    model would have weights that are not the folder's.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        local_files_only=True,
        output_loading_info=True,
        trust_remote_code=False,
        **{"experts_implementation": "eager"} if dtype == "float64" else {},
    )
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise WrongError(f"weights that are not the folder's: {report}")
    inputs: dict[int, np.ndarray] = {}
    modules = dict(model.named_modules())

    def store(_: torch.nn.Module, values: tuple, layer: int) -> None:
        last = values[0].reshape(len(tokens), -1, values[0].shape[-1])[:, -1]
        inputs[layer] = last.double().numpy()

    for layer, name in enumerate(names or []):
        if name in modules:
            modules[name].register_forward_pre_hook(partial(store, layer=layer))
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens, use_cache=False).logits[:, -1]
    return logits.double().numpy(), inputs


def close(values: np.ndarray, expected: np.ndarray, dtype: str, what: str) -> None:
    """Raise WrongError if the numbers of most prompts are wrong.

    values, expected: (prompts, ...). In exact dtypes, no prompt may be wrong. In others, a router
    may send single prompts to other experts.
    """
    difference = np.abs(values.ravel() - expected.ravel()).reshape(len(expected), -1)
    worst, largest = difference.max(1), max(np.abs(expected).max(), 1e-30)
    error = worst.max() if dtype in EXACT else np.median(worst)
    if not error <= ALLOWED[dtype] * largest:
        raise WrongError(f"{what} differ by {error:.2g}, of {largest:.2g}")


def _same(value: object, expected: object, what: str) -> None:
    if value != expected:
        raise WrongError(f"{what}: {value} instead of {expected}")


def _without_bos(own: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    own.bos_token = None
    return own


def _bytes(folder: Path) -> dict[str, bytes]:
    files = filter(lambda file: file.name != "SHA256SUMS", folder.iterdir())
    return {file.name: file.read_bytes() for file in files}


Damage = Callable[[Path, random.Random], object]
Tensors = dict[str, torch.Tensor]


def tensors(change: Callable[[Tensors, str], object]) -> Damage:
    """Change the weights; change: takes all tensors and the name of one with several axes."""

    def damage(folder: Path, random_numbers: random.Random) -> None:
        file = folder / "model.safetensors"
        whole = load_file(file)
        matrices = sorted(name for name, tensor in whole.items() if tensor.ndim > 1)
        change(whole, random_numbers.choice(matrices))
        contiguous = {name: tensor.contiguous() for name, tensor in whole.items()}
        save_file(contiguous, file, {"format": "pt"})

    return damage


def config(*names: str, to: Callable[[Any], Any]) -> Damage:
    """Change the first of these keys that config.json has."""

    def damage(folder: Path, _: random.Random) -> None:
        file = folder / "config.json"
        whole = json.loads(file.read_text())
        part = whole.get("text_config", whole)
        for name in names:
            if name in part:
                part[name] = to(part[name])
                break
        file.write_text(json.dumps(whole))

    return damage


def vocabulary(change: Callable[[dict[str, int]], object]) -> Damage:
    """Change the tokenizer's vocabulary, text -> token."""

    def damage(folder: Path, _: random.Random) -> None:
        file = folder / "tokenizer.json"
        whole = json.loads(file.read_text())
        change(whole["model"]["vocab"])
        file.write_text(json.dumps(whole))

    return damage


def _put(value: float) -> Damage:
    """Overwrite one weight."""

    def change(whole: Tensors, name: str) -> None:
        whole[name].view(-1)[0] = value

    return tensors(change)


def _cut(name: str) -> Damage:
    """Cut off a file at a random place."""

    def damage(folder: Path, random_numbers: random.Random) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: random_numbers.randrange(len(content))])

    return damage


def _delete(pattern: str) -> Damage:
    """Delete the files of this pattern."""

    def damage(folder: Path, _: random.Random) -> None:
        for file in folder.glob(pattern):
            file.unlink()

    return damage


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "num_heads")
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation")
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
MORE = torch.zeros(3)
DAMAGES: dict[str, Damage] = {
    "none": lambda *_: None,
    "a tensor missing": tensors(lambda whole, name: whole.pop(name)),
    "a tensor more": tensors(lambda whole, name: whole.update({f"{name}.more": MORE})),
    "a tensor renamed": tensors(lambda whole, name: whole.update({f"x{name}": whole.pop(name)})),
    "a tensor cut": tensors(lambda whole, name: whole.update({name: whole[name][:-1]})),
    "a tensor of another number of axes": tensors(
        lambda whole, name: whole.update({name: whole[name].flatten()})
    ),
    "a weight that is NaN": _put(float("nan")),
    "a weight that is infinite": _put(float("inf")),
    "a tensor of zeros": tensors(lambda whole, name: whole[name].zero_()),
    "another weight": _put(1.5),
    "weights cut": _cut("model.safetensors"),
    "no weights": _delete("model.safetensors"),
    "one layer more": config(*LAYERS, to=lambda n: n + 1),
    "one layer fewer": config(*LAYERS, to=lambda n: n - 1),
    "twice as wide": config(*WIDTHS, to=lambda n: 2 * n),
    "fewer heads": config(*HEADS, to=lambda n: n // 2),
    "no heads": config(*HEADS, to=lambda _: 0),
    "another activation": config(*ACTIVATION, to=lambda _: "relu"),
    "no such activation": config(*ACTIVATION, to=lambda _: "no-such"),
    "another epsilon": config(*EPSILON, to=lambda _: 0.1),
    "a smaller vocabulary": config("vocab_size", to=lambda _: 40),
    "a size that is a text": config(*WIDTHS, to=str),
    "config cut": _cut("config.json"),
    "no config": _delete("config.json"),
    "tokens swapped": vocabulary(lambda vocab: vocab.update({"7": vocab["8"], "8": vocab["7"]})),
    "two numbers with the same token": vocabulary(lambda vocab: vocab.update({"8": vocab["7"]})),
    "a token beyond the vocabulary": vocabulary(lambda vocab: vocab.update({"3": 4000})),
    "tokenizer cut": _cut("tokenizer.json"),
    "no tokenizer": _delete("tokenizer*"),
    "an empty folder": _delete("*"),
    "no folder": lambda folder, _: shutil.rmtree(folder),
}


@cache
def quiet() -> None:
    logging.set_verbosity_error()


def results(number: int, seed: int) -> list[tuple[Combination, str]]:
    """Try this many random combinations, without those that cannot be tried.

    An outcome that starts with WRONG is an error of the project.
    """
    quiet()
    random_numbers, outcomes = random.Random(seed), []
    with tqdm(total=number, file=sys.stderr) as bar:
        while len(outcomes) < number:
            combination = random_combination(random_numbers)
            with TemporaryDirectory() as folder:
                try:
                    model = Path(folder) / "model"
                    result = outcome(combination, model, random_numbers.randrange(1 << 30))
                except (Exception, SystemExit) as error:
                    text = " ".join(str(error).split())[:300]
                    result = f"WRONG: {type(error).__name__}: {text}"
            if result != "not tried":
                outcomes.append((combination, result))
                bar.update()
    return outcomes


def main(number: str = "300", seed: str = "0") -> None:
    """Print what is wrong, and how often each outcome occurs."""
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for combination, result in results(int(number), int(seed)):
        counts[result.partition(":")[0]] += 1
        if result.startswith("WRONG"):
            print(f"{combination}\n    {result}")
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
