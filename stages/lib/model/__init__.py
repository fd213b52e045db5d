"""All code that uses torch, transformers and tokenizers.

No module outside this folder imports them.
"""
