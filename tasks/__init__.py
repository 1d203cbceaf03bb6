"""The steps of a run, and what it stores on disk and in MLflow."""
