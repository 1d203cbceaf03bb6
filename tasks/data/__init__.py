"""Data preparation: from raw files to a packed corpus."""
