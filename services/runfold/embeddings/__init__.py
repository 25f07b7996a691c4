"""Computes vectors of texts, so that memories can be found by their meaning, with a model on this
machine or at an endpoint.

    async with embedder_of(settings) as embedder:
        facts = await embedder.embed(["The user prefers window seats", "The user has a dog"])
        [query] = await embedder.embed(["where do they sit in a plane?"])
        nearest(query, facts, limit=1)

Needs `runfold[memory]`. Importing this package loads no model, and no library except numpy.
"""

from runfold.embeddings.choice import embedder_of
from runfold.embeddings.embedder import Embedder, Vector, Vectors
from runfold.embeddings.nearest import Neighbour, nearest

__all__ = ["Embedder", "Neighbour", "Vector", "Vectors", "embedder_of", "nearest"]
