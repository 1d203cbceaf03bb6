"""Figures of a retriever, the gates, and the report."""
