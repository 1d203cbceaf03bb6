"""The training loop, its optimisers and checkpoints, and the steps to a retriever."""
