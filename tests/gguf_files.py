"""Write tiny GGUF files with the names, orders and settings of llama.cpp's converter."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedModel

from tests import families

ALPHABET = sorted(ByteLevel.alphabet())
MERGES = ["1 0", "10 0", "Ġ 1", "h e", "Ġ Ġ"]
END, BOS, PAD = "<|endoftext|>", "<|bos|>", "<|pad|>"
TOKENS = [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), END, BOS, PAD]
NORMAL, CONTROL = 1, 3
# architecture -> transformers' name, if it differs
MODEL_TYPES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
F32, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0


def model(architecture: str, **more: Any) -> PreTrainedModel:
    """Make a tiny random model of an architecture, by its name in GGUF."""
    family = MODEL_TYPES.get(architecture, architecture)
    sizes: dict[str, Any] = {"vocab_size": len(TOKENS)}
    if family != "gpt2":
        sizes |= {"num_key_value_heads": 2, "rope_theta": 5000.0}
    if family.startswith(("llama", "qwen")):
        sizes |= {"rms_norm_eps": 1e-5}
    return families.random_model(family, **{**sizes, **more})


def settings(architecture: str, config: Any) -> dict[str, Any]:
    """Return the metadata that the converter makes of a configuration, without missing settings."""
    rope = getattr(config, "rope_parameters", None) or {}
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(
            config, "intermediate_size", getattr(config, "n_inner", None)
        ),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(
            config, "norm_epsilon", getattr(config, "layer_norm_epsilon", None)
        ),
        "rope.freq_base": rope.get("rope_theta"),
        "expert_count": getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "expert_shared_feed_forward_length": getattr(
            config, "shared_expert_intermediate_size", None
        ),
    }
    if architecture in ("llama", "qwen3", "qwen3moe"):
        usual = config.hidden_size // config.num_attention_heads
        head = getattr(config, "head_dim", None) or usual
        values |= {"attention.key_length": head, "attention.value_length": head}
    if architecture == "llama":
        values |= {"rope.dimension_count": head, "vocab_size": config.vocab_size}
    return {f"{architecture}.{key}": value for key, value in values.items() if value is not None}


def tensors(architecture: str, made: PreTrainedModel) -> dict[str, np.ndarray]:
    """Return a model's weights under GGUF's names, in llama.cpp's order of rows."""
    config = made.config
    [kind] = [key for key, name in MODEL_ARCH_NAMES.items() if name == architecture]
    names = get_tensor_name_map(kind, config.num_hidden_layers)
    result = {}
    for name, weight in made.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("gate_up_proj"):
            stem = name.replace("gate_up_proj", "{}_proj")
            for part, half in zip(("gate", "up"), weight.chunk(2, dim=1), strict=True):
                result[names.get_name(stem.format(part)) + ".weight"] = half.numpy()
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs, name
        stored = _stored(architecture, config, name, weight)
        end = ".weight" if theirs.endswith("exps") else ""
        result[theirs + end] = np.ascontiguousarray(stored.squeeze().numpy())
    return result


def _stored(architecture: str, config: Any, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as the converter writes it."""
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        queries = "q_proj" in name
        return _interleaved(
            weight, config.num_attention_heads if queries else config.num_key_value_heads
        )
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return weight.T if architecture == "gpt2" and name.endswith(transposed) else weight


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of each head in the order of llama.cpp: rotated pairs are neighbours."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write(
    path: Path,
    metadata: dict[str, Any],
    weights: dict[str, np.ndarray],
    kind: GGMLQuantizationType = F32,
) -> Path:
    """Write a file. metadata: None leaves a key out; kind: of matrices, the rest is float32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    architecture = metadata["general.architecture"]
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if key != "general.architecture" and value is not None:
            _add(writer, key, value)
    for name, weight in weights.items():
        if weight.ndim == 1 or kind == F32:
            writer.add_tensor(name, weight.astype(np.float32))
        else:
            writer.add_tensor(name, quantize(weight.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def tokens(**more: Any) -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer that splits digits and adds no BOS."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [NORMAL] * (len(TOKENS) - 3) + [CONTROL] * 3,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": TOKENS.index(END),
        "tokenizer.ggml.bos_token_id": TOKENS.index(BOS),
        "tokenizer.ggml.padding_token_id": TOKENS.index(PAD),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}=",
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def write_model(
    path: Path,
    made: PreTrainedModel,
    architecture: str,
    kind: GGMLQuantizationType = F32,
    **more: Any,
) -> Path:
    """Write the file of a model. more: keys of its tokenizer."""
    metadata = {"general.architecture": architecture, "general.type": "model"}
    metadata |= settings(architecture, made.config) | tokens(**more)
    return write(path, metadata, tensors(architecture, made), kind)
