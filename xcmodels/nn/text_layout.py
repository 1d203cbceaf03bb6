"""Where the tokens of texts lie when a transformer encodes many of them at once: in shapes that repeat.

Of each shape that it meets anew a GPU has to choose its products and to get memory, and a processor that multiplies
bf16 has to compile them: a product of 2,048 tokens by MiniLM's weights takes 4 to 16 ms the first time, 1 to 5 later.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import torch

# Tokens, padding included, of the texts that are padded together. On two cores a step of MiniLM's two top layers on
# 1,950 texts of 14 tokens takes 2.6 s by 2,048, 3.1 by 4,096, 3.8 by 16,384 and 2.7 to 3.0 by 1,024 and 512.
TOGETHER = {"cpu": 2048, "cuda": 65_536}
ROW = 128    # tokens of a row of texts on a GPU, at least


@dataclass(frozen=True)
class PaddedPart:
    """Texts of similar length, padded together.

    texts (r,) int64: their numbers, of which the first `count` are wanted and the others repeat the last of these;
    width: tokens of each with its marks and padding.
    """

    texts: torch.Tensor
    count: int
    width: int


def padded_parts(order: torch.Tensor, sizes: np.ndarray, *, compiled: bool) -> list[PaddedPart]:
    """Return texts in parts of at most TOGETHER tokens, or of one text; order (n,) int64: the texts by size.

    sizes (n,): the tokens of each text with its marks. compiled: whether each shape costs, so that they are to be few.
    Then all parts of a width have as many texts as it allows, but for the last one, whose texts are repeated up to a
    power of two. Else no part is wider than its longest text.
    """
    ordered, most, parts, start = np.sort(sizes).tolist(), TOGETHER[order.device.type], list[PaddedPart](), 0
    while start < len(ordered):
        width = _width(ordered[start], ordered[-1], compiled)
        while ordered[(end := min(start + max(1, most // width), len(ordered))) - 1] > width:
            width = _width(width + 1, ordered[-1], compiled)
        texts, count = order[start:end], end - start
        if compiled and end == len(ordered):
            rows = min(1 << (count - 1).bit_length(), max(1, most // width))
            texts = torch.cat([texts, texts[-1:].expand(rows - count)])
        parts.append(PaddedPart(texts, count, width if compiled else ordered[end - 1]))
        start = end
    return parts


def _width(size: int, longest: int, compiled: bool) -> int:
    """Return the least width for a size: even ones, at most eight of them an octave, or the longest size."""
    step = max(2, (1 << size.bit_length()) // 16) if compiled else 1
    return min(-(-size // step) * step, longest)


@dataclass(frozen=True)
class RowLayout:
    """Where texts lie in rows of the same width, a whole text in one row and in the order of the texts.

    begins (n,) int64: the cell, row * width + column, of each text's first token; tokens: of all texts.
    """

    begins: torch.Tensor
    rows: int
    width: int
    tokens: int

    @classmethod
    def of(cls, sizes: np.ndarray) -> "RowLayout":
        """Return the layout of texts of these sizes (n,), in pinned memory where there is a GPU.

        Numbers of rows are few, so that batches of about as many tokens are of one shape: of each shape that it meets
        anew a GPU has to choose its products and to get memory.
        """
        width = max(ROW, -(-int(sizes.max()) // 8) * 8)
        ends, firsts = [0, *np.cumsum(sizes).tolist()], [0]
        while (following := bisect_right(ends, ends[firsts[-1]] + width) - 1) < len(sizes):
            firsts.append(following)
        counts = np.diff([*firsts, len(sizes)])
        before = np.repeat(np.arange(len(firsts)) * width - np.array(ends)[firsts], counts)
        begins = torch.from_numpy(np.array(ends[:-1]) + before)
        step = 1 << max(0, len(firsts).bit_length() - 5)
        return cls(begins.pin_memory() if torch.cuda.is_available() else begins, -(-len(firsts) // step) * step, width,
                   ends[-1])
