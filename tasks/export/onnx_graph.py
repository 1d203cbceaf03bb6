"""Encoders as ONNX graphs, one of each view, for onnxruntime."""

import logging
import warnings
from pathlib import Path

import torch
from torch import nn

from tasks.export.xcflow_encoder import Encoder

_LARGEST = 2**31 - 2**20    # bytes of weights that fit into the graph's own file
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _View(nn.Module):
    """One view of an encoder, of padded tokens."""

    def __init__(self, encoder: Encoder, view: str) -> None:
        super().__init__()
        self.encoder, self.view = encoder, view

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return self.encoder(ids, mask, types, self.view)


def write_graph(encoder: Encoder, view: str, file: Path) -> None:
    """Write a view of an encoder as an ONNX graph: INPUTS (n, w) int64 -> "vectors" (n, d) float32.

    n and w are free, w may be 0. Weights of 2 GB and more are in a file of their own beside it.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)    # warns that torchvision is not there
    size = sum(value.nbytes for value in encoder.state_dict().values())
    texts = [[1, 2, 3], [1, 2, 0]], [[1, 1, 1], [1, 1, 0]], [[0, 0, 1], [0, 1, 0]]
    example = tuple(map(torch.tensor, texts))
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_View(encoder, view).eval(), example, str(file), input_names=list(INPUTS),
                          output_names=["vectors"], dynamic_shapes=(free, free, free), dynamo=True, verbose=False,
                          external_data=size > _LARGEST)
