"""Evaluation of a retriever, the promotion gates, and the report."""
