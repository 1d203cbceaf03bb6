"""A bandit that adapts the weights of auxiliary losses, one Gaussian arm each (RAMEN).

The paper adapts its strengths by bandits of rate .01 (Appendix A) and says no more. Here an arm is a normal
distribution with a trained mean: a weight is drawn for a stretch of steps, and the reward is the rise of in-batch
accuracy over the previous stretch, minus its moving average. All state is in buffers, so that a checkpoint holds it.
"""

import torch
from torch import nn

FLOOR, SIGMA, STRETCH, MOMENTUM = 0.01, 0.01, 10, 0.8


class Bandit(nn.Module):
    """Draws `arms` weights for STRETCH steps at a time, and moves their means by the policy gradient."""

    mean: torch.Tensor
    drawn: torch.Tensor
    steps: torch.Tensor
    hits: torch.Tensor
    before: torch.Tensor
    usual: torch.Tensor

    def __init__(self, arms: int, start: float, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.full((arms,), max(start, FLOOR)))
        self.register_buffer("drawn", torch.full((arms,), max(start, FLOOR)))
        for name, value in (("steps", 0.0), ("hits", 0.0), ("before", -1.0), ("usual", 0.0)):
            self.register_buffer(name, torch.tensor(value))

    @torch.no_grad()
    def weights(self) -> torch.Tensor:
        """Return the weights of this step (arms,), redrawn from torch's generator at the start of a stretch."""
        if self.steps == 0:
            self.drawn.copy_((self.mean + SIGMA * torch.randn_like(self.mean)).clamp_min(FLOOR))
        return self.drawn.clone()

    @torch.no_grad()
    def learn(self, accuracy: torch.Tensor) -> None:
        """Record a step's in-batch accuracy, 0 to 1; at the end of a stretch, update the means."""
        self.hits += accuracy
        self.steps += 1
        if self.steps < STRETCH:
            return
        now = self.hits / STRETCH
        if self.before >= 0:
            reward = now - self.before
            # d/d mean of log N(drawn; mean, SIGMA^2), times the reward above its moving average
            self.mean += self.rate * (reward - self.usual) * (self.drawn - self.mean) / SIGMA**2
            self.mean.clamp_(min=FLOOR)
            self.usual.mul_(MOMENTUM).add_((1 - MOMENTUM) * reward)
        self.before.copy_(now)
        self.hits.zero_()
        self.steps.zero_()
