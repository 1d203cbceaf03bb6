"""NGAME."""
