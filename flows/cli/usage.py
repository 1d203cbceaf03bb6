"""What is wrong with the words of a command, as an error says it."""

from cyclopts import CycloptsError, UnusedCliTokensError


def usage_error(error: CycloptsError) -> str:
    """Return the message of an error; in our words where cyclopts' own speak of its parts."""
    if isinstance(error, UnusedCliTokensError):
        return f"more is given than this command takes: {' '.join(map(repr, error.unused_tokens or ()))}"
    return str(error).strip()
