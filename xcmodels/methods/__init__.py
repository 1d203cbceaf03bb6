"""The published methods, a folder each, and what they have in common."""
