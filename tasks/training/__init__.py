"""Training: rounds, hard-negative mining, embedding, and training by several processes."""
