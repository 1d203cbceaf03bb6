"""MLflow's server for the owner of a home: checks password, host and origin.

    python -m serving.mlflow_server --home HOME --port PORT

MLflow's own command starts a server without a password that accepts changes from any page of this machine, and whose
worker processes outlive it when it is killed; here one process does it all. Files are not proxied.
"""

import argparse
import base64
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.http.guard import Problem
from tasks.core.python_gc import collect_rarely
from tasks.tracking.mlflow_client import password, quiet_mlflow

HEALTH = "/health"    # the only address that needs no password: shows that the server runs
STOP = 5              # seconds for open requests to end


@dataclass(frozen=True)
class OwnerOnly:
    """An ASGI app that passes only requests of the owner's programs and pages on to another app.

    hosts: the server's host names, with ports. credentials: "user:password".
    """

    app: ASGIApp
    hosts: frozenset[str]
    credentials: str = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.admit(scope["path"], {key.decode("latin-1"): value.decode("latin-1")
                                           for key, value in scope["headers"]})
            except Problem as problem:
                # As text, which MLflow's clients show; they do not show JSON that is not MLflow's.
                await PlainTextResponse(problem.detail, problem.status, dict(problem.headers))(scope, receive, send)
                return
        if scope["type"] in ("http", "lifespan"):    # websockets are not needed
            await self.app(scope, receive, send)

    def admit(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise Problem for another host's name, a page of another origin (any port counts), or a wrong password."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host not in self.hosts:
            raise Problem(421, "host", "this server does not go by the name in the Host header")
        if origin is not None and origin.lower() != f"http://{host}":
            raise Problem(403, "origin", "pages of other origins may not ask this server")
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        expected = base64.b64encode(self.credentials.encode())
        authorised = hmac.compare_digest(credentials.strip().encode(), expected) and scheme.lower() == "basic"
        if path != HEALTH and not authorised:
            raise Problem(401, "password", "sign in with the line in HOME/mlflow/password, which is user:password",
                          headers={"WWW-Authenticate": 'Basic realm="MLflow", charset="UTF-8"'})


def create_app(home: Path, port: int) -> ASGIApp:
    """Return MLflow's app on HOME/mlflow.db, for the owner of the home.

    It proxies no files: clients use HOME/mlartifacts by its path. Raises MLflow's error for an invalid database.
    """
    quiet_mlflow()
    from mlflow.server import constants  # after uvicorn, by which MLflow detects that it runs in a server
    from mlflow.server.handlers import initialize_backend_stores

    database, files = f"sqlite:///{home}/mlflow.db", str(home / "mlartifacts")
    os.environ |= {constants.BACKEND_STORE_URI_ENV_VAR: database, constants.ARTIFACT_ROOT_ENV_VAR: files}
    initialize_backend_stores(database, database, files)
    from mlflow.server.fastapi_app import app

    return OwnerOnly(app, frozenset({f"127.0.0.1:{port}", f"localhost:{port}"}), password(home))


def main() -> None:
    """Serve until a signal."""
    collect_rarely()
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    uvicorn.run(create_app(options.home, options.port), host="127.0.0.1", port=options.port, log_level="warning",
                access_log=False, proxy_headers=False, server_header=False, ws="none", timeout_graceful_shutdown=STOP)


if __name__ == "__main__":
    main()
