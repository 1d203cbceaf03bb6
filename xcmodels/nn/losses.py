"""Losses over a block of scores: (scores, positives, weights) -> one number.

scores (R, C) float, positives (R, C) bool, weights (R, C) float or bool, or None; the loss ignores an entry
of weight 0, as a positive and as a negative, and multiplies a positive's term by its weight. A symmetric loss is the
same function on the transpose.
"""

import math

import torch
import torch.nn.functional as F

from xcmodels.data.batching import counted_pairs
from xcmodels.nn.autograd import SparseGradScores


def triplet(scores: SparseGradScores, chosen_positives: torch.Tensor, counted_negatives: torch.Tensor,
            weights: torch.Tensor | None = None, *, margin: float, hard_positives: int, hard_negatives: int,
            temperature: float) -> torch.Tensor:
    """Mean over rows of the weighted mean of [s_k - s_l + margin]+ over hard pairs (l, k) (NGAME, eq. 1).

    chosen_positives, counted_negatives: as in Block, the columns of a row's positives (R, P) int64, -1 = none, and its
    negatives (R, C) bool. Of the positives l the `hard_positives` lowest scores count, of the negatives k the
    `hard_negatives` highest. With `temperature` > 0 a negative counts by softmax(s_k / temperature) over those kept,
    harder ones more (as the authors' release does); with 0 all count alike. weights (R, C), as above, multiply a
    positive's terms. Rows with no pair are left out.
    """
    if not scores.values.shape[1]:    # none of the batch's texts has an anchor in the graph
        return scores.rows.sum() * 0
    # Absent entries are set to infinity: at zero they would rank above true negatives that score below zero.
    cols = chosen_positives.clamp_min(0)
    lowest, positive = _hardest(-scores.values.gather(1, cols), chosen_positives >= 0, hard_positives)
    highest, negative = _hardest(scores.values, counted_negatives, hard_negatives)
    picked = scores.pick(torch.cat([cols.gather(1, lowest), highest], 1))
    low, high = picked.split([lowest.shape[1], highest.shape[1]], 1)
    ranked = torch.where(negative, high.detach(), -torch.inf)
    share = F.softmax(ranked / temperature, dim=1) if temperature > 0 else torch.ones_like(high)
    share = torch.where(negative, share, 0.0)
    share = share / share.sum(1, keepdim=True).clamp_min(1e-12)
    hinge = F.relu(high[:, None, :] - low[:, :, None] + margin)
    hinge = torch.where(positive[:, :, None] & negative[:, None, :], hinge, 0.0)
    terms = (hinge * share[:, None, :]).sum(2)
    if weights is not None and weights.is_floating_point():
        terms = terms * weights.gather(1, cols.gather(1, lowest))
    per_row = terms.sum(1) / positive.sum(1).clamp_min(1)
    rows = positive.any(1) & negative.any(1)
    return per_row.sum() / rows.sum().clamp_min(1)


def _hardest(scores: torch.Tensor, allowed: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the `count` highest allowed scores of each row are, and which of them exist."""
    top = torch.where(allowed, scores, -torch.inf).topk(min(count, scores.shape[1]), dim=1)
    return top.indices, top.values != -torch.inf    # NaN scores exist, so that they show in the loss


def decoupled_softmax(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Mean over rows of -1/|P| sum over p in P of log(e^s_p / (e^s_p + sum over negatives n of e^s_n)).

    A row's other positives are in no denominator, so that positives do not compete (Gupta et al., DEXML; UniDEC,
    section 4.3, L_DS). scores are already divided by the temperature; rows without a positive are left out.
    """
    counted = counted_pairs(positives, weights)
    negatives = _logsumexp(scores, ~positives & counted)
    return _mean_of_rows(F.softplus(negatives - scores), positives & counted, weights)


def supcon(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Mean over rows of -1/|P| sum over p in P of log(e^s_p / sum over all l of e^s_l) (UniDEC, section 4.3, L_SC).

    scores are already divided by the temperature; rows without a positive are left out.
    """
    counted = counted_pairs(positives, weights)
    return _mean_of_rows(_logsumexp(scores, counted) - scores, positives & counted, weights)


def softmax_part(kind: str, scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None
                 ) -> torch.Tensor:
    """Return the log of a row's denominator over one part of the labels, (R, 1); kind: decoupled | supcon."""
    counted = counted_pairs(positives, weights)
    return _logsumexp(scores, counted if kind == "supcon" else ~positives & counted)


def softmax_of_parts(kind: str, denominators: torch.Tensor, positive_scores: torch.Tensor, rows: torch.Tensor,
                     weights: torch.Tensor) -> torch.Tensor:
    """Return `decoupled_softmax` or `supcon` over all labels from what it is of each part.

    denominators (R, parts) as `softmax_part` returns them; positive_scores (P,) those of the positives that count, with
    their rows (P,) and weights (P,).
    """
    gap = denominators.logsumexp(1).index_select(0, rows) - positive_scores
    terms = (gap if kind == "supcon" else F.softplus(gap)) * weights
    count = rows.bincount(minlength=len(denominators))
    per_row = terms.new_zeros(len(denominators)).index_add(0, rows, terms) / count.clamp_min(1)
    return per_row.sum() / (count > 0).sum().clamp_min(1)


def bounded_nll(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None, *, c: float, d: float,
                hard_negatives: torch.Tensor) -> torch.Tensor:
    """Mean over rows of the sum of -log p over positives and hard negatives (SiameseXML, eq. 5 and 6).

    A pair of cosine s is true with probability c exp(d (s - 1)), 0 < c < 1, so that the loss of a pair is bounded. Of a
    row's negatives the `hard_negatives` (R,) highest scores count; a positive counts by its weight.
    """
    counted = counted_pairs(positives, weights)
    counted_positives, counted_negatives = positives & counted, ~positives & counted
    worth = counted_positives.float() if weights is None else weights * counted_positives
    positive_terms = (d * (1 - scores) - math.log(c)) * worth
    depth = min(int(hard_negatives.max()), scores.shape[1])
    hardest, columns = torch.where(counted_negatives, scores, -torch.inf).topk(depth, dim=1)
    kept = counted_negatives.gather(1, columns) & (torch.arange(depth, device=scores.device) < hard_negatives[:, None])
    negative_terms = -torch.log1p(-c * torch.exp(d * (torch.where(kept, hardest, -1.0) - 1)))
    return (positive_terms.sum(1) + torch.where(kept, negative_terms, 0.0).sum(1)).mean()


def weighted_bce(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Mean over rows of the weighted sum over labels of the binary cross-entropy (ASTRA, eq. 1 and 2)."""
    terms = F.softplus(torch.where(positives, -scores, scores))
    return (terms if weights is None else terms * weights).sum(1).mean()


def prior_logit(positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return the logit of the share of positives among the pairs that count: one number.

    Added to scores about zero, it makes a pool's negatives push, all together, about as much as its positives pull.
    """
    counted = counted_pairs(positives, weights)
    right = (positives & counted).sum().clamp_min(1)
    return (right / (counted.sum() - right).clamp_min(1)).log()


def _logsumexp(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return log of the sum of e^s over the allowed entries of each row, (R, 1)."""
    # The floor is finite: where nothing is allowed, the gradient at minus infinity would be NaN.
    return torch.where(allowed, scores, torch.finfo(scores.dtype).min / 4).logsumexp(1, keepdim=True)


def _mean_of_rows(terms: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over rows of the mean of weighted `terms` over positives, of rows that have any."""
    count = positives.sum(1)
    if weights is not None and weights.is_floating_point():
        terms = terms * weights
    per_row = torch.where(positives, terms, 0.0).sum(1) / count.clamp_min(1)
    return per_row.sum() / (count > 0).sum().clamp_min(1)
