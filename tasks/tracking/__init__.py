"""Runs in MLflow, and which home is whose."""
