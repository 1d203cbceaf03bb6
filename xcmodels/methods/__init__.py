"""The published methods, one folder each, and their shared settings and base classes."""
