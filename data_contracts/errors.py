"""The expected failures of the whole project, each with its exit code on the command line."""

from collections.abc import Mapping


class ProjectError(Exception):
    """An expected failure: what went wrong with which value, where, and what to do about it.

    what: one sentence that names the value. where: `file:line`, or the name of a step. hint: a remedy, if possible a
    command.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, str]:
        """Return the error as JSON, from which `from_json` makes it again."""
        return {"kind": type(self).__name__, "what": self.what, "where": self.where, "hint": self.hint}

    def __reduce__(self):
        # Dask and Prefect pickle errors; the default would lose the keyword arguments.
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(kind: type[ProjectError], what: str, where: str, hint: str) -> ProjectError:
    return kind(what, where=where, hint=hint)


def from_json(error: Mapping[str, str], who: str = "") -> ProjectError:
    """Return an error that was written as JSON; who: where it was raised, which its message then begins with.

    One of a class that is not of this module is a ProjectError.
    """
    kind: type[ProjectError] = globals().get(error["kind"], ProjectError)
    return kind(f"{who}: {error['what']}" if who else error["what"], where=error["where"], hint=error["hint"])


class UsageError(ProjectError):
    """An invalid argument or setting."""

    exit_code = 2


class ContractError(ProjectError):
    """Data that breaks a rule of the contract."""

    exit_code = 3


class GateRefused(ProjectError):
    """A version that is worse than the champion by more than the gates allow."""

    exit_code = 4


class DamagedArtifact(ProjectError):
    """A stored file that differs from what was published; it is refused before it is parsed."""


class ServerError(ProjectError):
    """A server or an address that cannot be used."""

    exit_code = 5


class Stopped(ProjectError):
    """A run that the user stopped; its state is saved."""

    exit_code = 130
