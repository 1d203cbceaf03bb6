"""Request checks in front of the app: limits, timeouts, host names, tokens."""
