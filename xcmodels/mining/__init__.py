"""Mining for a round of training: query clusters, hard negatives, random walks."""
