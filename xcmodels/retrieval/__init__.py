"""From query vectors to ranked labels: indexes, scorers, fusion, explanations, edits."""
