"""Encoders, losses, and matrices trained by rows: torch alone."""
