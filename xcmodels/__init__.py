"""Models, losses, batching, training and retrieval for extreme classification, with no orchestrator in it."""
