"""What is wrong with the words of a command, as an error says it."""

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError


def usage_error(error: CycloptsError) -> str:
    """Return the message of an error; in our words where cyclopts' own speak of its parts."""
    if isinstance(error, UnusedCliTokensError):
        return f"more is given than this command takes: {' '.join(map(repr, error.unused_tokens or ()))}"
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
        return f"{' '.join(['xc', *(error.command_chain or ())])} needs {error.argument.name}"
    if isinstance(error, UnknownOptionError):
        words, option = error.root_input_tokens or [], error.token.keyword or error.token.value
        behind = words[words.index("--") + 1:] if "--" in words else []
        if option in (word.partition("=")[0] for word in behind):
            return f"{option} stands behind --, where options are no longer read; put it in front, or write ./-FILE"
    return str(error).strip()
