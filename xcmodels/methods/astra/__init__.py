"""ASTRA and Renee."""
