"""Loading a subject: any folder that transformers' AutoModelForCausalLM reads, safetensors only, no remote code."""

import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from stages.lib.core import machine
from stages.lib.core.settings import ParamsError
from stages.lib.model import agreement, architecture, contents, experts, search, spread
from stages.lib.model.float64 import widen
from stages.lib.model.folder import ModelError, existing, sentence, sha256, weights
from stages.lib.subject import SubjectSettings

logging.disable_progress_bar()
logging.set_verbosity_error()  # `read` judges what transformers would only warn of


@dataclass(frozen=True)
class Checkpoint:
    """A loaded subject, its architecture found and its canary passed.

    continues: whether it goes on after a cached prefix as in whole prompts, by the lengths of both
    in tokens, as far as that was tried (see prefixes.py).
    """

    model: PreTrainedModel
    architecture: architecture.Architecture
    continues: dict[tuple[int, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def last_logits(self, tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Return the logits (prompts, vocabulary) at the last position of tokens (prompts, positions).

        transformers multiplies a slice of the last hidden state. As it is not contiguous, CUDA
        would read the unembedding once for each prompt.
        """
        with architecture.patched(self.architecture.unembedding, torch.Tensor.contiguous):
            out = self.model(input_ids=tokens, logits_to_keep=1, **cache)
        return out.logits[:, -1]


def of(settings: SubjectSettings, threads: int | None = None, whole: bool = False) -> Checkpoint:
    """A subject's model, on this machine, with as many threads, by default as it has for work.

    whole: all of its weights are to be at hand. Raises as `load` and `spread.places` do, and ModelError where they cannot be.
    """
    device, threads = machine.device(), threads or machine.workers()
    if device == "cpu" and not machine.weights():
        return load(settings.source, settings.dtype, device, threads)
    _there(device)
    found = outline(settings)
    places = spread.places(bare(found.model.config, settings.dtype), {type(layer.block).__name__ for layer in found.architecture.layers})
    if whole:
        spread.refuse_offloaded(settings.source, places)
    return load(settings.source, settings.dtype, device, threads, places)


def load(folder: str | Path, dtype: str, device: str, threads: int, places: spread.Places | None = None) -> Checkpoint:
    """The model saved in `folder`, in evaluation mode. dtype: float32, float16, bfloat16 or float64; places: of its parts, else `device`.

    Raises ModelError where the folder does not hold exactly one whole model, ArchitectureError where its parts cannot be found.
    """
    _there(device)
    torch.set_num_threads(threads)
    how: dict[str, Any] = {"device_map": places} if places else {}
    # Experts one after another: what multiplies them in one go knows no float64.
    plain = read(folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager", **how).eval()
    try:
        model = _merged(agreement.with_attention(plain))
    except agreement.CANNOT as error:
        raise ModelError(f"{folder}: {type(plain).__name__} cannot be run in {dtype}: {sentence(error)}; choose another dtype") from None
    if not places:
        model.to(torch.device(device))  # type: ignore[arg-type]
    model.requires_grad_(False)
    if dtype == "float64":
        widen(model)
    return _checked(model)


def _there(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise ParamsError(f"device is cuda, but torch sees no GPU here; set {machine.DEVICE}=cpu in the environment")


def prepared(model: PreTrainedModel) -> Checkpoint:
    """A model of transformers that is loaded already, with plain attention and in evaluation mode. Raises ArchitectureError as `load`."""
    return _checked(_merged(agreement.with_attention(model)))


def _checked(model: PreTrainedModel) -> Checkpoint:
    return Checkpoint(model, agreement.check(model, search.find(model)))


def outline(settings: SubjectSettings) -> Checkpoint:
    """A subject's model without its weights, which no one can run: its parts, their sizes, and so what work there is to do.

    Raises ModelError or ArchitectureError, as far as they show without weights.
    """
    if not (folder := Path(settings.source)).is_dir():
        existing(folder)  # says what is missing
    contents.check(folder, whole=False)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return outline_of(config, settings.dtype)
    except Exception as error:
        raise ModelError(f"{folder} holds no causal language model that can be loaded: {sentence(error)}") from None


def outline_of(config: PreTrainedConfig, dtype: str) -> Checkpoint:
    """The same of a configuration. Raises ArchitectureError, or what transformers raises."""
    try:
        model = experts.merge(bare(config, dtype))
        return Checkpoint(model, search.find(model))
    except (*agreement.CANNOT, NotImplementedError):  # some look at numbers on their way, and so need memory, if not what is in it
        model = experts.merge(_zeros(bare(config, dtype)))
        return Checkpoint(model, search.find(model))


def bare(config: PreTrainedConfig, dtype: str) -> PreTrainedModel:
    """The model of a configuration, as transformers makes it, without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=getattr(torch, dtype), attn_implementation="eager").eval()


def _zeros(model: PreTrainedModel) -> PreTrainedModel:
    """Gives a model without weights some that are 0: memory that is only read, and so takes none."""
    for module in model.modules():
        both: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in both:
            for name, tensor in tensors.items():
                if tensor is not None:
                    zeros = torch.from_numpy(np.zeros(tensor.numel() * tensor.itemsize, np.uint8)).view(tensor.dtype).view(tensor.shape)
                    tensors[name] = nn.Parameter(zeros, requires_grad=False) if isinstance(tensor, nn.Parameter) else zeros
    return model


@torch.no_grad()
def canary(checkpoint: Checkpoint) -> str:
    """A digest of the last logits of a few prompts: who has another one computes otherwise. Of a model in float64, whose results are
    rounded when they are stored, of logits that are rounded, too, so that all kinds of processors have the same."""
    tokens = torch.arange(1, 41, device=checkpoint.model.device).remainder(checkpoint.architecture.vocabulary).reshape(8, 5)
    logits = checkpoint.last_logits(tokens, use_cache=False)
    if logits.dtype == torch.float64:
        logits = logits.mul(2**16).round().add(0.0)  # no negative zero
    return hashlib.sha256(logits.double().cpu().numpy().tobytes()).hexdigest()


def knows(checkpoint: Checkpoint, tokens: np.ndarray) -> None:
    """Raises ModelError where a model has no embedding of one of these tokens, of any shape: its tokenizer is another model's."""
    if (largest := int(tokens.max(initial=0))) >= (vocabulary := checkpoint.architecture.vocabulary):
        raise ModelError(
            f"the tokenizer says token {largest}, of which the model has no embedding: its {vocabulary:,} end with {vocabulary - 1}; "
            "give the folder the model's own tokenizer"
        )


WRONG = {  # what transformers calls it: what it means
    "missing_keys": "that config.json asks for are missing",
    "unexpected_keys": "have no place in the model of config.json",
    "mismatched_keys": "have another shape than config.json says",
}


def read(folder: str | Path, **how: Any) -> PreTrainedModel:
    """The model that transformers makes of a folder. Raises ModelError where that lacks a weight, or has one that belongs to no model.

    Never runs code of the folder. transformers itself would fill in random numbers for what is missing, and only remark on it.
    """
    path = existing(folder)
    contents.check(path)
    try:
        both: Any = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True, **how
        )
    except Exception as error:
        raise ModelError(f"{folder} holds no causal language model that can be loaded: {sentence(error)}") from None
    model, found = both
    stored = contents.stored_tensors(path)
    buffers = {name for name, tensor in stored.items() if contents.is_buffer(name, tensor)}
    for kind, meaning in WRONG.items():
        if names := sorted(set(map(str, found[kind])) - buffers):
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise ModelError(f"{folder}: {len(names)} of its tensors {meaning}: {some}")
    here = ((name, tensor) for name, tensor in model.named_parameters() if not tensor.is_meta)  # others are fetched when they are needed
    if broken := next((name for name, tensor in here if not _finite(tensor)), None):
        raise ModelError(
            f"{folder}: {broken} holds numbers that are not finite, in {model.dtype}; its files are damaged, or need a wider dtype"
        )
    return model


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are finite: least and largest are, and a NaN among them would be both.

    Reads the tensor once and makes no other of its size; `isfinite().all()` takes ten times as long.
    """
    return not tensor.numel() or all(map(torch.isfinite, torch.aminmax(tensor)))


@torch.no_grad()
def _merged(model: PreTrainedModel) -> PreTrainedModel:
    """The model, each of its mixtures of experts with one output projection. Raises ArchitectureError where it then says something else."""
    if not experts.mixtures(model):
        return model
    tokens = agreement.some_tokens(model.device, model.get_input_embeddings().weight.shape[0])  # type: ignore[index, arg-type, union-attr]
    before = model(input_ids=tokens, use_cache=False).logits
    after = experts.merge(model)(input_ids=tokens, use_cache=False).logits
    if not (after - before).abs().max() <= agreement.rounding(before.dtype) * before.abs().max():
        name = type(model).__name__
        raise architecture.ArchitectureError(f"{name} does more with its mixtures of experts than to weight what each of them says")
    return model


def fingerprint(folder: str | Path) -> dict[str, str]:
    """SHA-256 of a folder's weights and of its tokenizer, for the attributes of what is computed from them."""
    files = sorted(existing(folder).iterdir())
    return {
        "weights_sha256": sha256(weights(Path(folder))),
        "tokenizer_sha256": sha256([f for f in files if f.name.startswith(("tokenizer", "vocab", "merges", "special_tokens"))]),
    }
