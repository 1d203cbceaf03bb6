"""Contracts of the tables that pass between steps: schemas, rules and reports."""
