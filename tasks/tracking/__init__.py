"""Experiment tracking: runs in MLflow, and the identity of a HOME."""
