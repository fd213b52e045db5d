"""Carry results to other tools: TransformerLens, Hugging Face datasets and MIB's circuit track.

docs/bridges.md shows each bridge. Nothing here takes part in the pipeline.
"""

from stages.bridges.dataset import to_dataset
from stages.bridges.hooks import Hook, ModelPart, from_hook, to_hook
from stages.bridges.mib import areas, circuit_graph

__all__ = ["Hook", "ModelPart", "areas", "circuit_graph", "from_hook", "to_dataset", "to_hook"]
