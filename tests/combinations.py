"""Random combinations of family, tokenizer, template, dtype and damage: each is refused in a sentence, or is what plain forward passes say.

`python -m tests.combinations [NUMBER] [SEED]` counts what happens; tests/lib/test_combinations.py holds some of them. What is right is read
off transformers' own loader and forward pass, the tokenizer's own texts and, where a part has a place in the model, hooks on it by name.
"""

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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
TEMPLATES = ["{op1}{symbol}{op2}=", "{op1} {symbol} {op2} =", "Q: What is {op1} {symbol} {op2} =", "({op1}{symbol}{op2})="]
ALLOWED = {"float64": 1e-5, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # of the largest: how far two ways to compute are apart
EXACT = ("float64", "float32")
OPERANDS, LARGEST = range(4), 20


@dataclass(frozen=True)
class Combination:
    """What is drawn. sums: whether SHA256SUMS was taken before the damage."""

    family: str
    tokenizer: str
    template: str
    bos: bool
    dtype: str
    damage: str
    sums: bool

    def __str__(self) -> str:
        bos, sums = ("BOS" if self.bos else "no BOS"), ("sums" if self.sums else "no sums")
        return f"{self.family}, {self.tokenizer}, {self.template!r}, {bos}, {self.dtype}, {self.damage}, {sums}"


class WrongError(AssertionError):
    """What would have been wrong in silence."""


def drawn(rolls: random.Random) -> Combination:
    damage = rolls.choice([*DAMAGES, *["none"] * len(DAMAGES)])
    return Combination(
        rolls.choice(families.NAMES), rolls.choice([*TOKENIZERS]), rolls.choice(TEMPLATES), rolls.random() < 0.7, rolls.choice([*ALLOWED]),
        damage, rolls.random() < 0.2,
    )  # fmt: skip


def outcome(one: Combination, folder: Path, seed: int) -> str:
    """ "exact", "refused: …" or "not tried"; raises WrongError, or whatever else it was that should have been a sentence."""
    family, more = families.VARIANTS.get(one.family, (one.family, {}))
    try:
        model = families.random_model(family, **more)
        model.save_pretrained(folder)
        plain(folder, "float32", torch.zeros((1, 2), dtype=torch.long))
    except Exception:
        return "not tried"
    TOKENIZERS[one.tokenizer]().save_pretrained(folder)
    if one.sums:
        write_sums(folder)
    before = _bytes(folder)
    DAMAGES[one.damage](folder, random.Random(seed))
    try:
        own = tokenizer.load(folder)
        loaded = checkpoint.load(folder, one.dtype, "cpu", 1)
        if one.sums and _bytes(folder) != before:
            raise WrongError("a changed file was taken for the one that SHA256SUMS lists")
        _dump(loaded, own, one, folder)
    except (ModelError, PromptError, FloatingPointError) as error:  # the last is a sentence of carry_out
        text = str(error)
        if len(text.splitlines()) != 1 or len(text) > 700:
            raise WrongError(f"no sentence: {text}") from None
        return f"refused: {text}"
    return "exact"


def _dump(loaded: checkpoint.Checkpoint, own: Any, one: Combination, folder: Path) -> None:
    """Asks a small square as the stages prompts and dump do, and holds tokens, logits and activations against the plain way."""
    template = Template(own, one.template, "+", one.bos)
    tokens, answers = template.square(OPERANDS), template.answers(LARGEST)
    checkpoint.knows(loaded, np.append(tokens.ravel(), answers))
    front = [own.bos_token_id] if one.bos else []
    for i, j in np.ndindex(tokens.shape[:2]):
        text = one.template.format(op1=i, op2=j, symbol="+")
        _same(tokens[i, j].tolist(), front + own(text, add_special_tokens=False)["input_ids"], f"tokens of {text!r}")
    text = one.template.format(op1=1, op2=1, symbol="+")
    for number, token in enumerate(answers):
        _same(own.decode([token]).strip(), str(number), "an answer's token")
        _same([*tokens[1, 1].tolist(), token], front + own(f"{text}{number}", add_special_tokens=False)["input_ids"], "an answer's place")
    right = np.minimum(np.add.outer(OPERANDS, OPERANDS), len(answers) - 1)
    asked = np.array(answers)[right]
    a = loaded.architecture
    into = {layer: np.zeros((a.neurons, *tokens.shape[:2]), np.float32) for layer in range(len(a.layers))}
    means = grid.Means.zeros(loaded, tokens.shape[2])
    said = list(grid.run(loaded, tokens, asked, 2, into, means, sharing=grid.sharing(loaded, tokens)))
    names = {module: name for name, module in loaded.model.named_modules()}
    parts = [names.get(layer.mlp_out, "") for layer in a.layers]
    logits, seen = plain(folder, one.dtype, torch.from_numpy(tokens.reshape(-1, tokens.shape[2])), parts)
    close(np.concatenate([s.max_logit for s in said]), logits.max(-1), one.dtype, "largest logits")
    close(np.concatenate([s.answer_logit for s in said]), logits[np.arange(len(logits)), asked.ravel()], one.dtype, "answers' logits")
    for layer, activations in seen.items():  # of mixtures, whose experts' projections were put side by side, nothing has that name
        if activations.shape[-1] == a.neurons:
            close(into[layer].reshape(a.neurons, -1).T, activations, one.dtype, f"activations of layer {layer}")


def plain(folder: Path, dtype: str, tokens: torch.Tensor, parts: list[str] | None = None) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Last-position logits of whole passes of transformers' own model, and what enters modules of these names there.

    Raises WrongError where that model would have weights that are not the folder's.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True, trust_remote_code=False,
        **{"experts_implementation": "eager"} if dtype == "float64" else {},
    )  # fmt: skip
    if any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise WrongError(f"weights that are not the folder's: {report}")
    seen: dict[int, np.ndarray] = {}
    modules = dict(model.named_modules())
    for layer, name in enumerate(parts or []):
        if name in modules:
            modules[name].register_forward_pre_hook(lambda _, given, layer=layer: seen.update({layer: _last(given[0], len(tokens))}))
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False).logits[:, -1].double().numpy(), seen


def _last(x: torch.Tensor, prompts: int) -> np.ndarray:
    return x.reshape(prompts, -1, x.shape[-1])[:, -1].double().numpy()


def close(found: np.ndarray, expected: np.ndarray, dtype: str, what: str) -> None:
    """Raises WrongError where most prompts' numbers are off. With few digits a router may send single prompts to other experts."""
    worst = np.abs(found.ravel() - expected.ravel()).reshape(len(expected), -1).max(1)  # of each prompt
    off, largest = (worst.max() if dtype in EXACT else np.median(worst)), max(np.abs(expected).max(), 1e-30)
    if not off <= ALLOWED[dtype] * largest:
        raise WrongError(f"{what} are {off:.2g} off, of {largest:.2g}")


def _same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise WrongError(f"{what}: {found} instead of {expected}")


def _without_bos(own: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    own.bos_token = None
    return own


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "SHA256SUMS"}


Damage = Callable[[Path, random.Random], object]


def tensors(change: Callable[[dict[str, torch.Tensor], str, random.Random], object]) -> Damage:
    """Changes the weights. change(tensors, one of their names, random numbers)."""

    def damage(folder: Path, rolls: random.Random) -> None:
        whole = load_file(file := folder / "model.safetensors")
        change(whole, rolls.choice(sorted(name for name, tensor in whole.items() if tensor.ndim > 1)), rolls)
        save_file({name: tensor.contiguous() for name, tensor in whole.items()}, file, {"format": "pt"})

    return damage


def config(*names: str, to: Callable[[Any], Any]) -> Damage:
    """Changes the first of these keys that config.json has."""

    def damage(folder: Path, _: random.Random) -> None:
        file = folder / "config.json"
        whole = json.loads(file.read_text())
        of = whole.get("text_config", whole)
        if name := next((name for name in names if name in of), None):
            of[name] = to(of[name])
        file.write_text(json.dumps(whole))

    return damage


def _put(whole: dict[str, torch.Tensor], name: str, value: float) -> None:
    whole[name].view(-1)[0] = value


def _swap_tokens(folder: Path, _: random.Random) -> None:
    """What stood for 7 now stands for 8, and the other way round: another tokenizer, as good as the first."""
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text())
    of = whole["model"]["vocab"]
    of["7"], of["8"] = of["8"], of["7"]
    file.write_text(json.dumps(whole))


def _same_token(folder: Path, _: random.Random) -> None:
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["model"]["vocab"]["8"] = whole["model"]["vocab"]["7"]
    file.write_text(json.dumps(whole))


def _beyond(folder: Path, _: random.Random) -> None:
    """A token that the model has no embedding of."""
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["model"]["vocab"]["3"] = 4000
    file.write_text(json.dumps(whole))


def _cut(name: str) -> Damage:
    return lambda folder, rolls: (folder / name).write_bytes((whole := (folder / name).read_bytes())[: rolls.randrange(len(whole))])


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model")
DAMAGES: dict[str, Damage] = {
    "none": lambda *_: None,
    "a tensor missing": tensors(lambda whole, name, _: whole.pop(name)),
    "a tensor more": tensors(lambda whole, name, _: whole.update({f"{name}.more": torch.zeros(3)})),
    "a tensor renamed": tensors(lambda whole, name, _: whole.update({f"x{name}": whole.pop(name)})),
    "a tensor cut": tensors(lambda whole, name, _: whole.update({name: whole[name][:-1]})),
    "a tensor of another number of axes": tensors(lambda whole, name, _: whole.update({name: whole[name].flatten()})),
    "a weight that is NaN": tensors(lambda whole, name, _: _put(whole, name, float("nan"))),
    "a weight that is infinite": tensors(lambda whole, name, _: _put(whole, name, float("inf"))),
    "a tensor of zeros": tensors(lambda whole, name, _: whole[name].zero_()),
    "another weight": tensors(lambda whole, name, _: _put(whole, name, 1.5)),
    "weights cut": _cut("model.safetensors"),
    "no weights": lambda folder, _: (folder / "model.safetensors").unlink(),
    "one layer more": config(*LAYERS, to=lambda n: n + 1),
    "one layer fewer": config(*LAYERS, to=lambda n: n - 1),
    "twice as wide": config(*WIDTHS, to=lambda n: 2 * n),
    "fewer heads": config("num_attention_heads", "n_head", "num_heads", to=lambda n: n // 2),
    "no heads": config("num_attention_heads", "n_head", "num_heads", to=lambda _: 0),
    "another activation": config("hidden_act", "activation_function", "hidden_activation", to=lambda _: "relu"),
    "no such activation": config("hidden_act", "activation_function", "hidden_activation", to=lambda _: "no-such"),
    "another epsilon": config("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", to=lambda _: 0.1),
    "a smaller vocabulary": config("vocab_size", to=lambda _: 40),
    "a size that is a text": config(*WIDTHS, to=str),
    "config cut": _cut("config.json"),
    "no config": lambda folder, _: (folder / "config.json").unlink(),
    "tokens swapped": _swap_tokens,
    "two numbers of one token": _same_token,
    "a token beyond the vocabulary": _beyond,
    "tokenizer cut": _cut("tokenizer.json"),
    "no tokenizer": lambda folder, _: [file.unlink() for file in folder.glob("tokenizer*")],
    "an empty folder": lambda folder, _: [file.unlink() for file in folder.iterdir()],
    "no folder": lambda folder, _: shutil.rmtree(folder),
}


@cache
def quiet() -> None:
    logging.set_verbosity_error()


def results(number: int, seed: int) -> list[tuple[Combination, str]]:
    """So many combinations, without those that cannot be tried; what is wrong starts with WRONG."""
    quiet()
    rolls, found = random.Random(seed), []
    with tqdm(total=number, file=sys.stderr) as bar:
        while len(found) < number:
            one = drawn(rolls)
            with TemporaryDirectory() as folder:
                try:
                    result = outcome(one, Path(folder) / "model", rolls.randrange(1 << 30))
                except (Exception, SystemExit) as error:
                    result = f"WRONG: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if result != "not tried":
                found.append((one, result))
                bar.update()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    of = results(int(sys.argv[1]) if len(sys.argv) > 1 else 300, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for combination, result in of:
        if result.startswith("WRONG"):
            print(f"{combination}\n    {result}")
    print(dict(Counter(result.partition(":")[0] for _, result in of)))
