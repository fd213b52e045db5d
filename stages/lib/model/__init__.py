"""Everything that touches torch, transformers and tokenizers. No module outside this folder imports them."""
