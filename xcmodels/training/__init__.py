"""The loop, its checkpoints, and the steps from a corpus to a retriever as data."""
