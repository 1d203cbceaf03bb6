"""Torch modules: encoders, losses, matrices trained by rows, distributed training."""
