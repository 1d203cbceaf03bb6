"""From query vectors to labels: indexes, scores, fusion, and the folder that a retriever is."""
