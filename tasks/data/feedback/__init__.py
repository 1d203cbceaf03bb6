"""Feedback: reviewers' decisions on predicted labels, kept in a journal and learned from by the next training."""
