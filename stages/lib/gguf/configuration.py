"""Make config.json from a GGUF file's metadata, or refuse the file.

transformers reads GGUF files, too, but ignores settings that it does not know, and then computes
something else: frequency factors of Llama 3, RoPE scaling, the width of heads. This module writes
every setting of the file into the configuration, compares it with the configuration, or refuses it.
"""

import re
from dataclasses import dataclass, field
from math import pi
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from transformers import AutoConfig, PreTrainedConfig

from stages.lib.gguf.header import Header
from stages.lib.gguf.weights import dequantized
from stages.lib.model.folder import ModelError

FREQUENCIES = "rope_freqs.weight"
SPLIT = re.compile(r"-\d{5}-of-(\d{5})$")
SIZES = {  # name of a setting in the file -> name in config.json
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
HEADS = {"attention.key_length": "head_dim"}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


@dataclass(frozen=True)
class Family:
    """How one architecture of GGUF files becomes a model of transformers.

    model_type: of transformers; names: of the settings, in the file -> in config.json; fixed:
    settings that llama.cpp does not store; rotary: whether positions are encoded by RoPE.
    """

    model_type: str
    names: dict[str, str]
    fixed: dict[str, Any] = field(default_factory=dict)
    rotary: bool = True


# For each architecture a test shows that a converted file gives the original model's logits.
FAMILIES = {
    "llama": Family("llama", SIZES | RMS | HEADS),
    "qwen2": Family("qwen2", SIZES | RMS),
    "qwen2moe": Family(
        "qwen2_moe",
        SIZES | RMS | EXPERTS
        | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        {"norm_topk_prob": False},
    ),
    "qwen3": Family("qwen3", SIZES | RMS | HEADS),
    "qwen3moe": Family("qwen3_moe", SIZES | RMS | HEADS | EXPERTS, {"norm_topk_prob": True}),
    "starcoder2": Family("starcoder2", SIZES | {"attention.layer_norm_epsilon": "norm_epsilon"}),
    "gpt2": Family(
        "gpt2",
        {
            "block_count": "n_layer", "context_length": "n_positions",
            "embedding_length": "n_embd", "feed_forward_length": "n_inner",
            "attention.head_count": "n_head", "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        rotary=False,
    ),
}  # fmt: skip
OPTIONAL = {"attention.head_count_kv", "attention.key_length", "expert_feed_forward_length"}
HARMLESS = {  # settings that may have only these values, which are also the defaults
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.finetuned": False,
    "rope.scaling.attn_factor": 1.0,
}
NOT_COMPUTED_WITH = {"tensor_data_layout", "rope.scaling.original_context_length"}


def refuse(header: Header) -> None:
    """Raise ModelError if a file is not one whole language model of a supported architecture."""
    path, metadata = header.path, header.metadata
    kind = metadata.get("general.type", "model")
    if kind == "adapter":
        raise ModelError(f"{path} is an adapter; merge it into its base model, and convert that")
    if kind == "mmproj" or header.architecture == "clip":
        raise ModelError(
            f"{path} is a multimodal projector (mmproj), not a language model; "
            "give the file of the language model, which is usually in the same folder"
        )
    if kind != "model":
        raise ModelError(f"{path} holds {kind!r} (general.type); give a file that holds a model")
    parts = metadata.get("split.count") or int((SPLIT.search(path.stem) or [0, 1])[1])
    if parts > 1:
        raise ModelError(
            f"{path} is one of {parts} parts of a split model; "
            "join them first: llama-gguf-split --merge FIRST-PART WHOLE.gguf"
        )
    if header.architecture not in FAMILIES:
        raise ModelError(
            f"{path} has the architecture {header.architecture!r}; GGUF files of "
            f"{', '.join(FAMILIES)} are supported: give the original folder (safetensors) of others"
        )
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{path} holds no weights, only a vocabulary; give the model's own file")
    for tensor in header.tensors.values():
        if not _readable(tensor.kind):
            raise ModelError(
                f"{path}: the tensor {tensor.name} is of the type {tensor.kind.name}, which the "
                "package gguf cannot dequantise; use another quantisation, such as Q8_0 or Q4_K_M"
            )


def _readable(kind: GGMLQuantizationType) -> bool:
    block, size = GGML_QUANT_SIZES[kind]
    try:
        dequantized(np.zeros(size, np.uint8), kind, (block,))
    except NotImplementedError:
        return False
    return True


def configured(header: Header) -> PreTrainedConfig:
    """Return the configuration of a file that `refuse` accepts.

    Raises ModelError for settings that the configuration cannot hold.
    """
    family = FAMILIES[header.architecture]
    values: dict[str, Any] = {}
    for key, name in family.names.items():
        if header.setting(key) is not None:
            values[name] = _value(header, key)
        elif key not in OPTIONAL:
            problem = f"lacks the setting {header.architecture}.{key}"
            raise ModelError(f"{header.path} {problem}; convert the model again")
    if "num_key_value_heads" in family.names.values():
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
    if family.rotary:
        values["rope_parameters"] = _rope(header)
    _compare(header, family, values)
    return AutoConfig.for_model(
        family.model_type,
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        tie_word_embeddings="output.weight" not in header.tensors,
        dtype="float32",
        **values,
        **family.fixed,
        bos_token_id=header.token("bos_token_id"),
        eos_token_id=header.token("eos_token_id"),
        pad_token_id=header.token("padding_token_id"),
    )


def _value(header: Header, key: str) -> int | float:
    """Return a setting that is a number above 0, the same in all layers."""
    value = header.setting(key)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ModelError(
                f"{header.path}: {header.architecture}.{key} differs between layers, which is not "
                "supported for GGUF files; give the original folder (safetensors)"
            )
        value = value[0]
    name = f"{header.path}: the setting {header.architecture}.{key} = {value!r}"
    if not isinstance(value, int | float) or not 0 < value < 1 << 32:
        raise ModelError(f"{name} is not a number above 0; convert the model again")
    if key == "block_count" and value > len(header.tensors):
        raise ModelError(f"{name} is more than the {len(header.tensors):,} tensors of the file")
    return _shortest(value) if isinstance(value, float) else value


def _shortest(value: float) -> float:
    """Return the shortest decimal with the same 32 bits, as the model's config.json has it."""
    return float(str(np.float32(value)))


def _rope(header: Header) -> dict[str, Any]:
    """Return the parameters of RoPE. Raises ModelError for frequencies other than Llama 3's."""
    base = _shortest(header.setting("rope.freq_base", 10_000.0))
    plain = {"rope_type": "default", "rope_theta": base}
    if FREQUENCIES not in header.tensors:
        return plain
    tensor = header.tensors[FREQUENCIES]
    with header.path.open("rb") as file:
        file.seek(tensor.start)
        raw = np.frombuffer(file.read(tensor.size), np.uint8)
    factors = dequantized(raw, tensor.kind, tensor.shape)
    if (factors == 1).all():
        return plain
    scaling = {
        "rope_type": "llama3", "rope_theta": base, "factor": round(float(factors.max()), 3),
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    if not np.allclose(factors, _llama3(scaling, 2 * len(factors)), rtol=1e-4):
        raise ModelError(
            f"{header.path}: the frequencies in {FREQUENCIES} are not those of Llama 3; "
            "other frequencies are not supported: give the original folder (safetensors)"
        )
    return scaling


def _llama3(scaling: dict[str, Any], width: int) -> np.ndarray:
    """Return the divisors of RoPE's frequencies: (width / 2,), as Llama 3.1's rope_type has them.

    width: of a head.
    """
    lengths = 2 * pi * scaling["rope_theta"] ** (np.arange(0, width, 2) / width)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] / lengths - low) / (high - low)
    smooth = smooth.clip(0, 1)
    return 1 / ((1 - smooth) / scaling["factor"] + smooth)


def _compare(header: Header, family: Family, values: dict[str, Any]) -> None:
    """Raise ModelError for a setting that changes what the model computes, but is not in the
    configuration."""
    rows = header.tensors["token_embd.weight"].shape[0]
    width = values.get("hidden_size", values.get("n_embd", 0))
    heads = values.get("num_attention_heads", values.get("n_head", 1))
    head = values.get("head_dim", width // heads)
    expected = HARMLESS | {
        "vocab_size": rows,
        "rope.dimension_count": head,
        "attention.key_length": head,
        "attention.value_length": head,
    }
    known = {*family.names, *NOT_COMPUTED_WITH}
    if family.rotary:
        known.add("rope.freq_base")
    prefix = f"{header.architecture}."
    for key, value in header.metadata.items():
        name = key.removeprefix(prefix)
        if key == name or name in known:
            continue
        if name not in expected or expected[name] != value:
            raise ModelError(
                f"{header.path}: the setting {key} = {str(value)[:60]} is not supported for GGUF "
                "files of this family; give the original folder (safetensors)"
            )
