"""The model registry: versions registered, compared, promoted, edited and fetched."""
