"""Corpora as memory-mapped arrays, tokens, seeded generators, and training batches."""
