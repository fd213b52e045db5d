"""Make a small model of the Llama architecture with random weights, to train from scratch."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stages.subjects.settings import ModelShape

# Standard deviation of queries and keys that start with the same weights. Of the values tried,
# retrieval is learnt fastest with this one (docs/notes/training.md).
ALIKE = 0.12


def llama(shape: ModelShape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a model of this shape with the tokenizer's vocabulary.

    Its weights are torch's next random numbers. The queries and keys of the first `shape.alike`
    heads of every layer start with the same weights, so that tokens attend to equal tokens. The
    model then learns retrieval within some hundred steps, and without it not at all. With more such
    heads it learns everything else later.
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
    if rows:
        for layer in model.model.layers:
            attention = layer.self_attn
            torch.nn.init.normal_(attention.q_proj.weight[:rows], std=ALIKE)
            attention.k_proj.weight.data[:rows] = attention.q_proj.weight[:rows]
    return model
