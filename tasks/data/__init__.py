"""Raw files to a packed corpus."""
