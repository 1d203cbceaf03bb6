"""The states of texts between two layers of a transformer: kept on disk, and taken along with a batch's tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class HiddenStates:
    """States of n texts as one array: text i has `values[offsets[i]:offsets[i + 1]]`, one for each token and mark.

    values (S, d) float16; offsets (n + 1,) int64, and the same in the host's memory.
    """

    values: torch.Tensor
    offsets: torch.Tensor
    host_offsets: torch.Tensor

    @classmethod
    def of(cls, values: Any, offsets: Any) -> "HiddenStates":
        """Return the states in two arrays."""
        on_host = torch.from_numpy(offsets)
        return cls(torch.from_numpy(values), on_host, on_host)

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "HiddenStates":
        return HiddenStates(move(self.values), move(self.offsets), self.host_offsets)

    def part(self, start: int, stop: int) -> "HiddenStates":
        """Return the states of the texts from `start` to `stop` - 1."""
        offsets, on_host = (each[start:stop + 1] for each in (self.offsets, self.host_offsets))
        return HiddenStates(self.values[int(on_host[0]):int(on_host[-1])], offsets - offsets[0], on_host - on_host[0])

    def at(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Return the first `width` states of some texts, (rows, width, d); beyond a text's end any state."""
        places = self.offsets[rows][:, None] + torch.arange(width, device=rows.device)
        return self.values[places.clamp(max=len(self.values) - 1)]


def joined(groups: list[HiddenStates]) -> HiddenStates:
    """Return the states of the texts of all groups, concatenated."""
    return HiddenStates(torch.cat([group.values for group in groups]),
                        joined_offsets([group.offsets for group in groups]),
                        joined_offsets([group.host_offsets for group in groups]))


def joined_offsets(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the offsets of what has these offsets, concatenated."""
    return F.pad(torch.cat([offsets.diff() for offsets in parts]).cumsum(0), (1, 0))
