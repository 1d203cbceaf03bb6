"""Versions in the model registry: made, compared, promoted, edited, fetched."""
