"""`xc serve`: a retriever over HTTP."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import HOME, Home, Mlflow, Spec, environment, require_home
from flows.config import shared

WORKERS = 64            # at most
LONGEST_NOTICE = 600
Workers = Annotated[int, Parameter(help="Processes that answer; they share the model's memory.")]


def serve(*, model: Spec = "", home: Home = HOME, mlflow: Mlflow = "",
          host: Annotated[str, Parameter(help="Address to listen on; beyond this machine it takes a token and names.")]
          = "127.0.0.1",
          port: Annotated[int, shared("port", "Port to listen on; 0 is a free one.", variable=False)] = 8000,
          token_file: Annotated[Path | None, Parameter(help="File of the token that is asked for, mode 0600.")] = None,
          allow_host: Annotated[tuple[str, ...], Parameter(help="Name that the server goes by; repeatable.")] = (),
          feedback: Annotated[Literal["take", "refuse"], Parameter(
              help="What reviewers say of answers: take it into the home's journal, for the next training.")] = "take",
          workers: Workers = 1,
          notice: Annotated[float, Parameter(
              help="Seconds for which /readyz says that the server stops, before it does.")] = 1.0,
          wait: Annotated[bool, Parameter(help="Begin although there is no model yet.")] = False) -> None:
    """Answer over HTTP with the version that an alias names, and follow the alias."""
    if not wait:
        require_home(home)
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port must be from 0 to 65535, got {port}")
    if not 1 <= workers <= WORKERS:
        raise UsageError(f"--workers must be from 1 to {WORKERS}, got {workers}")
    if not 0 <= notice <= LONGEST_NOTICE:
        raise UsageError(f"--notice must be from 0 to {LONGEST_NOTICE} seconds, got {notice:g}")
    environment(home)
    from flows.services.definitions import mlflow_of
    from serving.access import make_access
    from serving.server import serve as run

    run(home, mlflow and mlflow_of(home, mlflow), model, host=host, port=port,
        access=make_access(host, token_file, allow_host), wait=wait, feedback=feedback == "take", workers=workers,
        notice=notice)
