"""Texts, labels and their relation as memory-mapped arrays, and the batches made of them."""
