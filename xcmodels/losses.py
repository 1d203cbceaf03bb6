"""Losses over a block of scores: (scores, positives, weights) -> one number.

scores (R, C) float, positives (R, C) bool, weights (R, C) float or None; an entry of weight 0 is no term of
the loss, neither as a positive nor as a negative. A symmetric loss is the same function on the transpose.
"""

import torch
import torch.nn.functional as F


def triplet(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None, *, margin: float,
            hard_positives: int, hard_negatives: int, temperature: float) -> torch.Tensor:
    """Mean over rows of the weighted mean of [s_k - s_l + margin]+ over hard pairs (l, k) (NGAME, eq. 1).

    Of a row's positives l the `hard_positives` lowest scores count, of its negatives k the `hard_negatives`
    highest. With `temperature` > 0 a negative counts by softmax(s_k / temperature) over those kept, harder
    ones more (as the authors' release does); with 0 all count alike. Rows with no pair are left out.
    """
    present = torch.ones_like(positives) if weights is None else weights > 0
    # Absent entries are set to infinities: to zero them instead would leave them above the true negatives
    # whenever those score below zero.
    low, positive = _hardest(-scores, positives & present, hard_positives)
    high, negative = _hardest(scores, ~positives & present, hard_negatives)
    ranked = torch.where(negative, high.detach(), -torch.inf)
    share = F.softmax(ranked / temperature, dim=1) if temperature > 0 else torch.ones_like(high)
    share = torch.where(negative, share, 0.0)
    share = share / share.sum(1, keepdim=True).clamp_min(1e-12)
    hinge = F.relu(low[:, :, None] + high[:, None, :] + margin)
    hinge = torch.where(positive[:, :, None] & negative[:, None, :], hinge, 0.0)
    per_row = (hinge * share[:, None, :]).sum((1, 2)) / positive.sum(1).clamp_min(1)
    rows = positive[:, 0] & negative[:, 0]
    return per_row.sum() / rows.sum().clamp_min(1)


def _hardest(scores: torch.Tensor, allowed: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` highest allowed scores of each row, and which of them exist."""
    top = torch.where(allowed, scores, -torch.inf).topk(min(count, scores.shape[1]), dim=1).values
    exists = top != -torch.inf    # a score that is not a number exists, and shows in the loss
    return torch.where(exists, top, 0.0), exists
