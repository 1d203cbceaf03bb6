"""Prefect flows, the command line, and the services of a home."""
