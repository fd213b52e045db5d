"""A small Llama-architecture model with random weights, for training from scratch."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stages.subjects.settings import ModelShape

# Standard deviation of weights that start alike. Of the values tried, retrieval is learnt fastest
# with this one (docs/notes/training.md).
ALIKE = 0.12


def llama(shape: ModelShape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A model of this shape and of the tokenizer's vocabulary. Its weights are torch's next random numbers.

    The queries and keys of the first `shape.alike` heads of every layer start as the same weights, so that tokens look for their like:
    looking things up is then learnt within some hundred steps, and without it not at all. With more such heads all else is learnt later.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.neurons,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # faster than sdpa on short prompts
    rows = shape.alike * shape.width // shape.heads
    for attention in (layer.self_attn for layer in model.model.layers if rows):
        torch.nn.init.normal_(attention.q_proj.weight[:rows], std=ALIKE)
        attention.k_proj.weight.data[:rows] = attention.q_proj.weight[:rows]
    return model
