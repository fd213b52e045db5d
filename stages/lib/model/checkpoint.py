"""Load a model under study from any folder that transformers' AutoModelForCausalLM reads.

Weights must be safetensors; code in the folder is never run.
"""

import copy
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from stages.lib.core import environment
from stages.lib.core.digest import digest
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError
from stages.lib.model import agreement, architecture, contents, experts, search, spread
from stages.lib.model.float64 import widen
from stages.lib.model.folder import ModelError, existing, sentence, sha256, weights
from stages.lib.model.memory import keep_freed
from stages.lib.subject import SubjectSettings

CHECKED = Path(".cache/checked_models")

logging.disable_progress_bar()
logging.set_verbosity_error()  # `read` makes errors of these warnings


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and its verified architecture.

    continues: (length of a prefix, length of its prompts), both in tokens -> whether the model
    computes the same after the cached prefix as in whole prompts. prefixes.py fills it.
    """

    model: PreTrainedModel
    architecture: architecture.Architecture
    continues: dict[tuple[int, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def last_logits(self, tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Return the logits (prompts, vocabulary) at the last position.

        tokens: (prompts, positions); cache: further arguments of the model's forward.
        """
        # transformers multiplies a slice of the last hidden state; as the slice is not contiguous,
        # CUDA would read the unembedding once for each prompt
        with architecture.patched(self.architecture.unembedding, torch.Tensor.contiguous):
            out = self.model(input_ids=tokens, logits_to_keep=1, **cache)
        return out.logits[:, -1]


def from_settings(
    settings: SubjectSettings, threads: int | None = None, whole: bool = False
) -> Checkpoint:
    """Load a subject's model on this machine's devices.

    threads: of torch; None: as many as this machine has for work. whole: refuse a model of which
    some weights would be fetched in every pass. Raises as `load` and `spread.places` do, and
    ModelError for a refused model.
    """
    device, threads = environment.device(), threads or environment.workers()
    if device == "cpu" and not environment.weights():
        return load(settings.source, settings.dtype, device, threads)
    _check_device(device)
    plan = outline(settings)
    blocks = {type(layer.block).__name__ for layer in plan.architecture.layers}
    places = spread.places(bare(plan.model.config, settings.dtype), blocks)
    if whole:
        spread.refuse_offloaded(settings.source, places)
    return load(settings.source, settings.dtype, device, threads, places)


def load(
    folder: str | Path,
    dtype: str,
    device: str,
    threads: int,
    places: spread.Places | None = None,
) -> Checkpoint:
    """Load the model saved in a folder, in evaluation mode.

    dtype: float32, float16, bfloat16 or float64; threads: of torch; places: the device of each
    part, None to put all parts on `device`. A model on one device that passed the checks of
    agreement.py before is not checked again (`_passed`). Raises ModelError if the folder does not
    hold exactly one whole model, ArchitectureError if a part of the model is not found.
    """
    _check_device(device)
    keep_freed()
    torch.set_num_threads(threads)
    plain = read(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        experts_implementation="eager",  # the fused implementations do not support float64
        **({"device_map": places} if places else {}),
    ).eval()
    passed = None if places else _passed(Path(folder), dtype, device)
    if passed and passed.is_file():
        model = _ready(experts.merge(plain), dtype, device)
        return Checkpoint(model, agreement.with_head(model, search.find(model)))
    try:
        model = _merged(agreement.with_attention(plain))
    except agreement.CANNOT as error:
        problem = f"{type(plain).__name__} cannot be run in {dtype}: {sentence(error)}"
        raise ModelError(f"{folder}: {problem}; choose another dtype") from None
    loaded = _checked(_ready(model, dtype, None if places else device))
    if passed and model is plain:
        # the project may be read-only
        with suppress(OSError), replacing(passed, shared=True) as partial:
            partial.touch()
    return loaded


def _ready(model: PreTrainedModel, dtype: str, device: str | None) -> PreTrainedModel:
    """Return the model as it runs. device: None for a model that is on its devices already."""
    if device:
        model.to(torch.device(device))  # type: ignore[arg-type]
    model.requires_grad_(False)
    if dtype == "float64":
        widen(model)
    return model


def _passed(folder: Path, dtype: str, device: str) -> Path:
    """Return the file that exists if a model has passed all checks with its own plain attention.

    Its name is a digest of what the checks depend on: weights, configuration, the code that runs
    and checks the model, dtype and device.
    """
    code = [Path(__file__).parent, folder / "config.json"]
    versions = torch.__version__, transformers.__version__
    return CHECKED / digest(code, fingerprint(folder)["weights_sha256"], dtype, device, *versions)


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        way_out = f"set {environment.DEVICE}=cpu in the environment"
        raise ParamsError(f"device is cuda, but torch sees no GPU here; {way_out}")


def prepared(model: PreTrainedModel) -> Checkpoint:
    """Return the checkpoint of a model that is already loaded, in evaluation mode.

    Raises ArchitectureError as `load` does.
    """
    return _checked(_merged(agreement.with_attention(model)))


def _checked(model: PreTrainedModel) -> Checkpoint:
    return Checkpoint(model, agreement.check(model, search.find(model)))


def outline(settings: SubjectSettings) -> Checkpoint:
    """Return a subject's model without its weights: its parts and their sizes.

    The model cannot be run. Raises ModelError or ArchitectureError for problems that show without
    weights.
    """
    folder = Path(settings.source)
    if not folder.is_dir():
        existing(folder)  # raises the error for a missing folder
    contents.check(folder, whole=False)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return outline_of(config, settings.dtype)
    except Exception as error:
        raise contents.not_loaded(folder, error) from None


def outline_of(config: PreTrainedConfig, dtype: str) -> Checkpoint:
    """Return the model of a configuration without its weights, as `outline` does.

    Raises ArchitectureError, or what transformers raises.
    """
    try:
        model = experts.merge(bare(config, dtype))
        return Checkpoint(model, search.find(model))
    except (*agreement.CANNOT, NotImplementedError):
        # some models look at numbers in their forward pass, so their weights need memory
        model = experts.merge(_zeros(bare(config, dtype)))
        return Checkpoint(model, search.find(model))


def bare(config: PreTrainedConfig, dtype: str) -> PreTrainedModel:
    """Return the model of a configuration on the meta device, as transformers makes it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config),
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
        )
    return model.eval()


def _zeros(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model on the meta device weights of 0."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                zeros = nn.Parameter(_zeros_like(parameter), requires_grad=False)
                module._parameters[name] = zeros
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _zeros_like(buffer)
    return model


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    # NumPy's zeros take no memory as long as they are only read
    zeros = np.zeros(tensor.numel() * tensor.itemsize, np.uint8)
    return torch.from_numpy(zeros).view(tensor.dtype).view(tensor.shape)


@torch.no_grad()
def parity_digest(checkpoint: Checkpoint) -> str:
    """Return a digest of the last logits of a few prompts.

    Processes with different digests compute different numbers. The logits of a float64 model are
    rounded first, like its stored results, so that the digest is the same on every processor.
    """
    tokens = torch.arange(1, 41, device=checkpoint.model.device)
    tokens = tokens.remainder(checkpoint.architecture.vocabulary).reshape(8, 5)
    logits = checkpoint.last_logits(tokens, use_cache=False)
    if logits.dtype == torch.float64:
        logits = logits.mul(2**16).round().add(0.0)  # + 0.0 turns -0.0 into 0.0
    return hashlib.sha256(logits.double().cpu().numpy().tobytes()).hexdigest()


def knows(checkpoint: Checkpoint, tokens: np.ndarray) -> None:
    """Check that the model has an embedding of each of these tokens, an array of any shape.

    Raises ModelError if it does not: the tokenizer is another model's.
    """
    largest, vocabulary = int(tokens.max(initial=0)), checkpoint.architecture.vocabulary
    if largest >= vocabulary:
        raise ModelError(
            f"the tokenizer gives token {largest}, of which the model has no embedding: it has "
            f"tokens 0 to {vocabulary - 1}; give the folder the model's own tokenizer"
        )


WRONG = {  # transformers' name of a problem -> its description
    "missing_keys": "that config.json asks for are missing",
    "unexpected_keys": "have no place in the model of config.json",
    "mismatched_keys": "have another shape than config.json says",
}


def read(folder: str | Path, **how: Any) -> PreTrainedModel:
    """Return the model that transformers makes of a folder, without running code of the folder.

    how: further arguments of `from_pretrained`. Raises ModelError if a weight is missing,
    superfluous or not finite. (transformers fills in random numbers for a missing weight, and only
    warns.)
    """
    path = existing(folder)
    contents.check(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **how,
        )
    except Exception as error:
        raise contents.not_loaded(folder, error) from None
    model, problems = loaded
    stored = contents.stored_tensors(path)
    buffers = {name for name, tensor in stored.items() if contents.is_buffer(name, tensor)}
    for kind, meaning in WRONG.items():
        names = sorted(set(map(str, problems[kind])) - buffers)
        if names:
            some = ", ".join(names[:3]) + ", …" * (len(names) > 3)
            raise ModelError(f"{folder}: {len(names)} of its tensors {meaning}: {some}")
    for name, tensor in model.named_parameters():
        # weights on the meta device are fetched when they are needed
        if not tensor.is_meta and not _is_finite(tensor):
            problem = f"{name} holds numbers that are not finite, in {model.dtype}"
            way_out = "its files are damaged, or need a wider dtype"
            raise ModelError(f"{folder}: {problem}; {way_out}")
    return model


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers are finite.

    They are if the smallest and the largest number are; a NaN would be both. This needs no tensor
    of the same size, and a tenth of the time of `isfinite().all()`.
    """
    return not tensor.numel() or all(map(torch.isfinite, torch.aminmax(tensor)))


@torch.no_grad()
def _merged(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, each of its mixtures of experts with a single output projection.

    Raises ArchitectureError if this changes the logits.
    """
    if not experts.mixtures(model):
        return model
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[index, union-attr]
    tokens = agreement.some_tokens(model.device, vocabulary)  # type: ignore[arg-type]
    before = model(input_ids=tokens, use_cache=False).logits
    after = experts.merge(model)(input_ids=tokens, use_cache=False).logits
    if not agreement.near(after, before, agreement.rounding(before.dtype)):
        name = type(model).__name__
        problem = "does more with its mixtures of experts than add their weighted outputs"
        raise architecture.ArchitectureError(f"{name} {problem}")
    return model


TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens")  # how names of its files begin


def fingerprint(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 digests of a folder's weights and of its tokenizer.

    They are stored as attributes of results.
    """
    files = sorted(existing(folder).iterdir())
    return {
        "weights_sha256": sha256(weights(Path(folder))),
        "tokenizer_sha256": sha256([file for file in files if file.name.startswith(TOKENIZER)]),
    }
