"""Make every family of causal language models of transformers, tiny and random, and try it.

`python -m tests.families > docs/families.md` writes down what happened. A test compares the page
with what happens (tests/lib/test_families.py).
"""

import copy
import inspect
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from stages.lib.executor import naive
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.pairs import by_length
from stages.lib.gguf import configuration
from stages.lib.model import architecture, checkpoint, experts
from stages.lib.model.folder import sentence
from stages.store import grid

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 5_000_000  # parameters; a family with more is not tried
ALLOWED = 3e-5  # of the largest logit or activation
WIDTH, NEURONS, LAYERS, HEADS, TOKENS = 32, 48, 3, 4, 140
NAMES_OF_SIZES = {  # names of a setting in configurations, value
    "hidden_size d_model n_embd n_embed dim emb_dim embed_dim word_embed_proj_dim": WIDTH,
    "intermediate_size ffn_dim n_inner ffn_hidden_size d_ff decoder_ffn_dim": NEURONS,
    "encoder_ffn_dim dim_ff mlp_hidden_size shared_intermediate_size": NEURONS,
    "moe_intermediate_size expert_ffn_hidden_size": 16,
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size": 24,
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers": LAYERS,
    "num_attention_heads n_head n_heads num_heads": HEADS,
    "decoder_attention_heads encoder_attention_heads": HEADS,
    "max_position_embeddings n_positions n_ctx max_seq_len": 64,
    "num_local_experts num_experts n_routed_experts": 4,
    "num_experts_per_tok moe_topk moe_top_k top_k_experts": 2,
    "vocab_size vocab_size_per_layer_input": TOKENS,
    "head_dim v_head_dim hidden_size_per_layer_input": 8,
    "mamba_d_state ssm_state_size state_size": 8,
    "qk_rope_head_dim qk_nope_head_dim rotary_dim mamba_n_heads mamba_num_heads": 4,
    "mamba_d_head mamba_head_dim q_lora_rank kv_lora_rank": 16,
    "linear_num_key_heads linear_num_value_heads num_key_value_heads": 2,
    "linear_key_head_dim linear_value_head_dim": 8,
    "attention_window_size sliding_window lru_width": 32,
    "n_group topk_group bos_token_id first_k_dense_replace": 1,
    "eos_token_id depth": 2,
    "pad_token_id attn_pdrop num_kv_shared_layers": 0,
    "image_size": 16,
    "patch_size": 8,
    "out_hidden_size": WIDTH,
    "tie_word_embeddings": False,
}
SMALL: dict[str, Any] = {}  # settings of a tiny model, as far as a configuration has them
for names, value in NAMES_OF_SIZES.items():
    SMALL |= dict.fromkeys(names.split(), value)
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": NEURONS,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "image_size": 16,
    "patch_size": 8,
}
LATENT = {"head_dim": 4, "num_key_value_heads": 4}  # multi-head latent attention
FOURTH = {"num_hidden_layers": 4}  # only each fourth layer has attention
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        [
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
        ],
        LATENT,
    ),
    **dict.fromkeys(["minicpm3", "youtu", "longcat_flash"], LATENT),
    **dict.fromkeys(
        ["qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"], FOURTH
    ),
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"expand": 2, "num_heads": 8, "head_dim": 8},
    "nemotron_h": {"n_groups": 2},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "xmod": {"default_language": "en_XX"},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # other settings than a family's defaults
    "cohere, logits scaled": ("cohere", {"logit_scale": 0.0625}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "falcon, parallel, one key": (
        "falcon",
        {"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False},
    ),
    "falcon, new": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma2, no caps": (
        "gemma2",
        {"final_logit_softcapping": None, "attn_logit_softcapping": None},
    ),
    "gpt_neox, sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "granite, scaled": (
        "granite",
        {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    ),
    "llama, tied, biases": (
        "llama",
        {"tie_word_embeddings": True, "mlp_bias": True, "attention_bias": True},
    ),
    "mistral, window of 4": ("mistral", {"sliding_window": 4}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
}


class TooLarge(Exception):
    """A family whose configuration cannot be made small by NAMES_OF_SIZES."""


def configured(family: str, **more: Any) -> Any:
    """Return the tiny configuration of a family. more: further settings."""
    kind = CONFIG_MAPPING[family]
    own = MORE.get(family, {}) | more
    parts = {name: dict(_known(part)) for name, part in getattr(kind, "sub_configs", {}).items()}
    if not parts.get("text_config"):
        return kind(**{**_known(kind), **own})
    text = parts["text_config"] | own
    vision = parts.get("vision_config") or VISION
    if "vision_config" not in kind.sub_configs:
        return kind(text_config=text)
    return kind(text_config=text, vision_config=vision)


@cache
def _known(kind: Any) -> dict[str, Any]:
    """Return the settings of SMALL that a class of configurations has; not to be changed."""
    names = set(inspect.signature(kind.__init__).parameters)
    for base in kind.__mro__:
        names.update(getattr(base, "__annotations__", {}))
    names.difference_update(getattr(kind, "attribute_map", {}))
    return {name: value for name, value in SMALL.items() if name in names}


def random_model(family: str, **more: Any) -> PreTrainedModel:
    """Make a tiny model of a family, with random weights so large that every part matters.

    more: further settings. Raises TooLarge, or what transformers raises.
    """
    config = configured(family, **more)
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).parameters()
        count = sum(parameter.numel() for parameter in parameters)
    if count > LARGEST:
        raise TooLarge(f"{count:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim > 1:
            parameter.data = noise * 0.3
        else:
            parameter.data = noise * 0.1 + (parameter.ndim == 1)
    # raises if sizes do not fit each other
    model(input_ids=torch.zeros((1, 2), dtype=torch.long), use_cache=False)
    return model.requires_grad_(False)


def square() -> np.ndarray:
    """Return the tokens of a 4 x 4 grid of prompts: (4, 4, 5), the first three equal in a row."""
    tokens = np.full((4, 4, 5), 1, np.int64)
    tokens[..., 1], tokens[..., 2] = np.arange(4)[:, None] + 3, 120
    tokens[..., 3], tokens[..., 4] = np.arange(4)[None] + 30, 121
    return tokens


def pairs() -> pl.DataFrame:
    """Return two pairs of prompts of that grid."""
    positions = {"op1": 1, "operator": 2, "op2": 3, "last": 4}
    prompts = square().reshape(16, 5).tolist()
    rows = []
    for pair in (1, 2):
        rows.append(
            {
                "pair": pair,
                "operator": "add",
                "split": "discovery",
                "tokens": prompts[pair],
                "answer_token": 7,
                "positions": positions,
                "counterfactual_tokens": prompts[11 - pair],
                "counterfactual_answer_token": 9,
                "counterfactual_positions": positions,
            }
        )
    return pl.DataFrame(rows)


def patches(layers: int) -> list[Patch]:
    """Return patches of every kind of component, in the first and the last of some layers."""
    neuron, head = np.array([2], np.int32).tobytes(), np.array([1], np.int32).tobytes()
    kinds = [
        ("mlp", None, "op1", "counterfactual"),
        ("neuron", neuron, "op2", "zero"),
        ("neuron", neuron, "last", "counterfactual"),
        ("head", head, "op2", "zero"),
        ("residual", None, "last", "counterfactual"),
        ("coordinate", neuron, "last", "zero"),
    ]
    made = []
    edges = []
    for layer in sorted({0, layers - 1}):
        for component, units, position, replacement in kinds:
            made.append(Patch(component, layer, units, position, None, replacement))
        edges.append(Patch("edge", layer, head, "last", "op1", "zero"))
    return made + edges


def plain_way(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Return the last logits of whole forward passes with the library's usual attention."""
    config = copy.deepcopy(model.config)
    config._attn_implementation_internal = None
    usual = type(model)._from_config(config).eval()
    usual.load_state_dict(model.state_dict())
    inputs = torch.from_numpy(tokens.reshape(-1, tokens.shape[-1]))
    with torch.no_grad():
        return usual(input_ids=inputs, use_cache=False).logits[:, -1].numpy()


def outcome(family: str, **more: Any) -> str:
    """Return what happens to a family: "exact" with remarks, or "refused" with the message.

    Raises AssertionError if results are wrong.
    """
    try:
        model = random_model(family, **more)
    except TooLarge as error:
        return f"not tried: {error}"
    except Exception as error:
        return f"not tried: transformers makes no tiny model of it ({type(error).__name__})"
    usual = plain_way(model, square())
    try:
        loaded = checkpoint.prepared(model)
    except architecture.ArchitectureError as error:
        return f"refused: {error}"
    a = loaded.architecture
    planned = checkpoint.outline_of(configured(family, **more), "float32").architecture
    for size in ("width", "neurons", "heads", "head_width", "vocabulary"):
        assert getattr(planned, size) == getattr(a, size), size
    assert len(planned.layers) == len(a.layers)
    remarks = ["exact", *_dumped(loaded, usual), *_run(loaded)]
    if loaded.model is not model:
        remarks.append("its usual attention, because plain attention differs")
    if any(isinstance(layer.mlp_out, experts.Mixture) for layer in a.layers):
        remarks.append("neurons of all experts")
    if any(layer.post_norm is not None for layer in a.layers):
        remarks.append("a norm after the MLP")
    if a.head is not None:
        remarks.append("logits scaled or capped")
    return "; ".join(remarks)


def _dumped(loaded: checkpoint.Checkpoint, usual: np.ndarray) -> list[str]:
    """Compare a dump with forward passes. usual: their logits. Returns remarks."""
    a, tokens = loaded.architecture, square()
    sharing, means = grid.sharing(loaded, tokens), grid.Means.zeros(loaded, 5)
    activations = {i: np.zeros((a.neurons, 4, 4), np.float32) for i in range(len(a.layers))}
    answers = np.full((4, 4), 7)
    runs = list(grid.run(loaded, tokens, answers, 2, activations, means, sharing=sharing))
    close(np.concatenate([run.max_logit for run in runs]), usual.max(-1), "largest logits")
    close(np.concatenate([run.answer_logit for run in runs]), usual[:, 7], "answer's logits")
    seen: list[torch.Tensor] = []
    with ExitStack() as stack:
        for layer in a.layers:
            look = architecture.patched(layer.mlp_out, lambda x: seen.append(x[:, -1]))
            stack.enter_context(look)
        inputs = torch.from_numpy(tokens.reshape(16, 5))
        loaded.model(input_ids=inputs, use_cache=False)
    for i, values in activations.items():
        close(values.reshape(-1, 16).T, seen[i].numpy(), f"activations of layer {i}")
    return ["dumped by whole prompts"] if sharing is grid.Sharing.NONE else []


def _run(loaded: checkpoint.Checkpoint) -> list[str]:
    """Compare interventions with forward passes that have hooks. Returns remarks."""
    try:
        executor = Executor(loaded, None, 10**9, 1 << 30)
    except architecture.ArchitectureError:
        return ["no interventions, as some layers have no heads"]
    remarks = []
    if not executor.restarts:
        remarks.append("interventions by whole prompts, slower")
    [batch] = by_length(pairs(), 10)
    values = executor.fresh(batch)
    for patch in patches(len(loaded.architecture.layers)):
        intervention = Intervention(0, None, None, (patch,))
        try:
            plain = naive.logits(values, intervention)
        except (ValueError, RuntimeError):  # for example if all heads share one mask
            if patch.component != "edge":
                raise
            return [*remarks, "edges cannot be cut"]
        logits = executor.logits(values, intervention)
        close(logits.numpy(), plain.numpy(), f"logits under {patch}")
    return remarks


def close(values: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Raise AssertionError if values are off by more than ALLOWED of the largest expected value."""
    largest, off = max(np.abs(expected).max(), 1e-30), np.abs(values - expected).max()
    assert off <= ALLOWED * largest, f"{name} are {off:.2g} off, of {largest:.2g}"


def page(rows: Sequence[tuple[str, str]]) -> str:
    """Return docs/families.md. rows: each family or variant, and its outcome."""
    counts = []
    for kind in ("exact", "refused", "not tried"):
        count = sum(result.startswith(kind) for _, result in rows)
        counts.append(f"{count} {kind}")
    head = HEAD.format(counts=", ".join(counts), gguf=", ".join(configuration.FAMILIES))
    lines = [f"| {name} | {result.replace('|', '/')} |" for name, result in rows]
    return "\n".join([head, "| family | what happens |", "|---|---|", *lines, ""])


HEAD = """# Which model families work

This page lists every family of causal language models in transformers. For each family a tiny
random model ran in float32. `python -m tests.families > docs/families.md` writes this page, and a
test tries a part of the families, one for each kind of outcome.
{counts}.

* **exact**: the dump stores the activations and logits of plain forward passes with the library's
  usual attention. Interventions on every component give the logits of forward passes with hooks.
  Both agree within 3e-5 of the largest value.
* **refused**: the pipeline stops with this message before any work. It computes nothing for a model
  that does something it cannot handle.
* **not tried**: no tiny model of the family could be made.

Some rows have remarks. "By whole prompts" means that prompts do not share the computation of their
common beginning, which is slower. "Edges" are attention edges.

## Mixtures of experts

The neurons of a mixture of experts are the neurons of all its experts. First come the experts that
are always active, then the routed experts, one after the other. An expert whose output has a bias
has one more neuron.

If a token is not routed to an expert, the activations of the expert's neurons are 0. Layers with
fewer neurons than others are padded with neurons whose activation is always 0. There is no column
`expert`, so every table and query about neurons also holds for mixtures.

## GGUF files

A GGUF file can be the source of a model of these architectures, in the names of llama.cpp:

{gguf}.

For each architecture a test verifies that the converted folder gives the logits of the model that
the file was made from.

* Every setting of the file is converted, compared or refused, and every tensor has a place.
* Text is split as `tokenizer.ggml.pre` says. An unknown value is refused.
* Files of other architectures are refused with a message, even if transformers reads them.
  transformers ignores settings that change what is computed.

## Families
"""


def results(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return each family or variant with its outcome; a wrong outcome starts with WRONG."""
    outcomes = []
    for name in tqdm(names, file=sys.stderr):
        family, more = VARIANTS.get(name, (name, {}))
        try:
            result = outcome(family, **more)
        except (Exception, SystemExit) as error:
            result = f"WRONG: {type(error).__name__}: {sentence(error)}"
        outcomes.append((name, result))
    return outcomes


NAMES = sorted([*FAMILIES, *VARIANTS])
PAGE = Path(__file__).parents[1] / "docs/families.md"

if __name__ == "__main__":
    logging.set_verbosity_error()
    print(page(results(sys.argv[1:] or NAMES)), end="")
