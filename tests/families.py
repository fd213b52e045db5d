"""Every family of causal language models that transformers has, tiny and with random weights: which work here, and which are refused.

`python -m tests.families > docs/families.md` writes down what happened; tests/lib/test_families.py holds that page against what happens.
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
from stages.lib.model import architecture, checkpoint
from stages.lib.model.folder import sentence
from stages.store import grid

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 5_000_000  # parameters; what cannot be made so small is not tried
ALLOWED = 3e-5  # of the largest logit, or activation
WIDTH, NEURONS, LAYERS, HEADS, TOKENS = 32, 48, 3, 4, 140
SMALL: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "n_embed", "dim", "emb_dim", "embed_dim", "word_embed_proj_dim"], WIDTH),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim"], NEURONS),
    **dict.fromkeys(["dim_ff", "mlp_hidden_size", "shared_intermediate_size"], NEURONS),
    **dict.fromkeys(["moe_intermediate_size", "expert_ffn_hidden_size"], 16),
    **dict.fromkeys(["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"], 24),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"], LAYERS),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads"], HEADS),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"], 64),
    **dict.fromkeys(["num_local_experts", "num_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts"], 2),
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], TOKENS),
    **dict.fromkeys(["head_dim", "v_head_dim", "hidden_size_per_layer_input", "mamba_d_state", "ssm_state_size", "state_size"], 8),
    **dict.fromkeys(["qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "mamba_n_heads", "mamba_num_heads"], 4),
    **dict.fromkeys(["mamba_d_head", "mamba_head_dim", "q_lora_rank", "kv_lora_rank"], 16),
    **dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads", "num_key_value_heads"], 2),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim"], 8),
    **dict.fromkeys(["attention_window_size", "sliding_window", "lru_width"], 32),
    **{"n_group": 1, "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1},
    **{"tie_word_embeddings": False, "attn_pdrop": 0, "num_kv_shared_layers": 0},
    **{"image_size": 16, "patch_size": 8, "depth": 2, "out_hidden_size": WIDTH},
}  # as far as a configuration has them
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": NEURONS,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "image_size": 16,
    "patch_size": 8,
}
LATENT = {"head_dim": 4, "num_key_value_heads": 4}  # attention whose keys and values have a common small form
FOURTH = {"num_hidden_layers": 4}  # attends, and those before it do not
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"], LATENT),
    **dict.fromkeys(["minicpm3", "youtu", "longcat_flash"], LATENT),
    **dict.fromkeys(["qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"], FOURTH),
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"expand": 2, "num_heads": 8, "head_dim": 8},
    "nemotron_h": {"n_groups": 2},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "xmod": {"default_language": "en_XX"},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # what a family's defaults leave out
    "cohere, logits scaled": ("cohere", {"logit_scale": 0.0625}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "falcon, parallel, one key": ("falcon", {"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}),
    "falcon, new": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma2, no caps": ("gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": None}),
    "gpt_neox, sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "granite, scaled": ("granite", {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0}),
    "llama, tied, biases": ("llama", {"tie_word_embeddings": True, "mlp_bias": True, "attention_bias": True}),
    "mistral, window of 4": ("mistral", {"sliding_window": 4}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
}


class TooLarge(Exception):
    """A family whose configuration cannot be made small by these names of sizes."""


def configured(family: str, **more: Any) -> Any:
    """Its configuration, tiny."""
    of = CONFIG_MAPPING[family]
    parts = {name: dict(_known(part)) for name, part in getattr(of, "sub_configs", {}).items()}
    if not parts.get("text_config"):
        return of(**{**_known(of), **MORE.get(family, {}), **more})
    parts["text_config"] |= MORE.get(family, {}) | more
    parts["vision_config"] = parts.get("vision_config") or VISION
    return of(**{name: parts[name] for name in ("text_config", "vision_config") if name in of.sub_configs})


@cache
def _known(of: Any) -> dict[str, Any]:
    """Its sizes that have names here; not to be changed."""
    names = set(inspect.signature(of.__init__).parameters).union(*(getattr(base, "__annotations__", {}) for base in of.__mro__))
    return {name: value for name, value in SMALL.items() if name in names and name not in getattr(of, "attribute_map", {})}


def random_model(family: str, **more: Any) -> PreTrainedModel:
    """A tiny model of the family, its weights large enough that every part matters. Raises TooLarge, or what transformers raises."""
    config = configured(family, **more)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if parameters > LARGEST:
        raise TooLarge(f"{parameters:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1) + (parameter.ndim == 1)
    model(input_ids=torch.zeros((1, 2), dtype=torch.long), use_cache=False)  # raises where sizes do not fit each other
    return model.requires_grad_(False)


def square() -> np.ndarray:
    """Tokens of a square of prompts: (4, 4, 5), the first three of a row the same."""
    tokens = np.full((4, 4, 5), 1, np.int64)
    tokens[..., 1], tokens[..., 2] = np.arange(4)[:, None] + 3, 120
    tokens[..., 3], tokens[..., 4] = np.arange(4)[None] + 30, 121
    return tokens


def pairs() -> pl.DataFrame:
    """Two pairs of prompts of that square."""
    at, rows = {"op1": 1, "operator": 2, "op2": 3, "last": 4}, square().reshape(16, 5).tolist()
    return pl.DataFrame(
        [
            {"pair": i, "operator": "add", "split": "discovery", "tokens": rows[i], "answer_token": 7, "positions": at,
             "counterfactual_tokens": rows[11 - i], "counterfactual_answer_token": 9, "counterfactual_positions": at} for i in (1, 2)
        ]
    )  # fmt: skip


def patches(layers: int) -> list[Patch]:
    """Of every component."""
    neuron, head = (np.array([unit], np.int32).tobytes() for unit in (2, 1))
    of = [("mlp", None, "op1", "counterfactual"), ("neuron", neuron, "op2", "zero"), ("neuron", neuron, "last", "counterfactual"),
          ("head", head, "op2", "zero"), ("residual", None, "last", "counterfactual"), ("coordinate", neuron, "last", "zero")]  # fmt: skip
    chosen = sorted({0, layers - 1})
    return [Patch(component, layer, units, position, None, new) for layer in chosen for component, units, position, new in of] + [
        Patch("edge", layer, head, "last", "op1", "zero") for layer in chosen
    ]


def plain_way(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Logits at the last position of whole forward passes with the library's usual attention."""
    config = copy.deepcopy(model.config)
    config._attn_implementation_internal = None
    usual = type(model)._from_config(config).eval()
    usual.load_state_dict(model.state_dict())
    with torch.no_grad():
        return usual(input_ids=torch.from_numpy(tokens.reshape(-1, tokens.shape[-1])), use_cache=False).logits[:, -1].numpy()


def outcome(family: str, **more: Any) -> str:
    """What becomes of a family: "exact", with remarks, or "refused", with the sentence. Raises AssertionError where it is wrong instead."""
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
    planned, found = checkpoint.outline_of(configured(family, **more), "float32").architecture, loaded.architecture
    for size in ("width", "neurons", "heads", "head_width", "vocabulary"):
        assert getattr(planned, size) == getattr(found, size), size
    assert len(planned.layers) == len(found.layers)
    remarks = _dumped(loaded, usual) + _run(loaded)
    a = loaded.architecture
    remarks += ["its usual attention, because plain attention differs"] * (loaded.model is not model)
    remarks += ["neurons of all experts"] * any(type(layer.mlp_out).__name__ == "Mixture" for layer in a.layers)
    remarks += ["a norm after the MLP"] * any(layer.post_norm is not None for layer in a.layers)
    remarks += ["logits scaled or capped"] * (a.head is not None)
    return "; ".join(["exact", *remarks])


def _dumped(loaded: checkpoint.Checkpoint, usual: np.ndarray) -> list[str]:
    a, tokens = loaded.architecture, square()
    sharing = grid.sharing(loaded, tokens)
    into = {layer: np.zeros((a.neurons, 4, 4), np.float32) for layer in range(len(a.layers))}
    said = list(
        grid.run(
            loaded,
            tokens,
            np.full((4, 4), 7),
            2,
            into,
            grid.Means.zeros(loaded, 5),
            sharing=sharing,
        )
    )
    close(np.concatenate([one.max_logit for one in said]), usual.max(-1), "largest logits")
    close(np.concatenate([one.answer_logit for one in said]), usual[:, 7], "answer's logits")
    seen: list[torch.Tensor] = []
    with ExitStack() as stack:
        for layer in a.layers:
            stack.enter_context(architecture.patched(layer.mlp_out, lambda x: seen.append(x[:, -1])))
        loaded.model(input_ids=torch.from_numpy(tokens.reshape(16, 5)), use_cache=False)
    for layer, values in into.items():
        close(values.reshape(-1, 16).T, seen[layer].numpy(), f"activations of layer {layer}")
    return ["dumped by whole prompts"] * (sharing is grid.Sharing.NONE)


def _run(loaded: checkpoint.Checkpoint) -> list[str]:
    try:
        executor = Executor(loaded, None, 10**9, 1 << 30)
    except architecture.ArchitectureError:
        return ["no interventions, as some layers have no heads"]
    remarks = ["interventions by whole prompts, slower"] * (not executor.restarts)
    [two] = by_length(pairs(), 10)
    values = executor.fresh(two)
    for patch in patches(len(loaded.architecture.layers)):
        one = Intervention(0, None, None, (patch,))
        try:
            plain = naive.logits(values, one)
        except (ValueError, RuntimeError):  # such as that its mask is one for all heads
            if patch.component != "edge":
                raise
            return [*remarks, "edges cannot be cut"]
        close(executor.logits(values, one).numpy(), plain.numpy(), f"logits under {patch}")
    return remarks


def close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Raises AssertionError where numbers are off by more than ALLOWED of the largest."""
    largest, off = max(np.abs(expected).max(), 1e-30), np.abs(found - expected).max()
    assert off <= ALLOWED * largest, f"{what} are {off:.2g} off, of {largest:.2g}"


def page(rows: Sequence[tuple[str, str]]) -> str:
    """docs/families.md."""
    kinds = {kind: sum(result.startswith(kind) for _, result in rows) for kind in ("exact", "refused", "not tried")}
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    lines = [f"| {name} | {result.replace('|', '/')} |" for name, result in rows]
    return "\n".join(
        [
            HEAD.format(said=said, gguf=", ".join(configuration.FAMILIES)),
            "| family | what happens |",
            "|---|---|",
            *lines,
            "",
        ]
    )


HEAD = """# Which model families work

This page lists every family of causal language models in transformers. For each family a tiny
random model ran in float32. `python -m tests.families > docs/families.md` writes this page, and a
test compares it with what happens. {said}.

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
    """(family or variant, outcome); what is wrong starts with WRONG."""
    found = []
    for name in tqdm(names, file=sys.stderr):
        family, more = VARIANTS.get(name, (name, {}))
        try:
            result = outcome(family, **more)
        except (Exception, SystemExit) as error:
            result = f"WRONG: {type(error).__name__}: {sentence(error)}"
        found.append((name, result))
    return found


NAMES = sorted([*FAMILIES, *VARIANTS])
PAGE = Path(__file__).parents[1] / "docs/families.md"

if __name__ == "__main__":
    logging.set_verbosity_error()
    print(page(results(sys.argv[1:] or NAMES)), end="")
