"""What a round trains on: clusters of queries, hard negatives, random walks."""
