"""What a run does, step by step, with what it keeps on disk and in MLflow."""
