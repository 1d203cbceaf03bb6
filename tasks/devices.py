"""Which devices this machine has to train on."""


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return bool(torch.cuda.is_available())
