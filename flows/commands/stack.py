"""`xc up`, `xc down`, `xc status`, `xc doctor`: the servers and workers of a home, and what it needs to run."""

import json
import os
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from cyclopts import Parameter

from data_contracts.errors import ProjectError
from flows.commands.options import HOME, Home, Json, home_flag, say


def up(*, home: Home = HOME,
       mlflow: Annotated[str, Parameter(env_var="XC_MLFLOW", help="Address of an MLflow server to use.")] = "",
       prefect_port: Annotated[int, Parameter(env_var="XC_PREFECT_PORT", help="Port of the Prefect server.")] = 4200,
       mlflow_port: Annotated[int, Parameter(env_var="XC_MLFLOW_PORT", help="Port of the MLflow server.")] = 5000,
       port: Annotated[int, Parameter(env_var="XC_PORT", help="Port of the app, which answers with labels.")] = 8000,
       model: Annotated[str, Parameter(help="Model that the app answers with; the only one by default.")] = "",
       ) -> None:
    """Start what is not up: Prefect server, MLflow server, worker, app; they stay until `xc down`."""
    from flows.services import Ports, require_prefect, services
    from flows.stack import Stack
    from tasks.artifacts import Store
    from tasks.devices import gpus
    from tasks.mlflow_client import probe

    Store(home)
    stack = Stack(home)
    prefect = os.environ.get("PREFECT_API_URL", "")
    if prefect:
        require_prefect(home)
    if mlflow:
        probe(mlflow)
    wanted = services(home, Ports(prefect_port, mlflow_port, port), prefect=prefect, mlflow=mlflow, model=model,
                      gpu=gpus() > 0)
    started = stack.up(wanted, say)
    for title, address in (("Prefect", prefect), ("MLflow", mlflow)):
        if address:
            say(_line(title, f"{address}, which was there: not started"))
    for record in stack.records().values():
        if record.name not in started:
            how = "already up" if record.well else f"does not answer: xc down{home_flag(home)}, then this again"
            say(_line(record.title, f"{how}{record.address and ': '}{record.address}"))
    if not prefect:
        say(_line("sign in to Prefect with the line in", str(stack.home / "prefect" / "password")))
    say(_line("logs", str(stack.logs)))
    say(_line("next", f"xc deploy --data DIR{home_flag(home)}; xc down{home_flag(home)} ends what was started"))


def down(*, home: Home = HOME) -> None:
    """End what `xc up` started in this home, and all that it started; what is kept in the home stays."""
    from flows.stack import Stack

    if not Stack(home).down(say):
        say(f"nothing of {home} is up")


def status(*, home: Home = HOME, as_json: Json = False) -> None:
    """List what `xc up` started in this home: where it is, since when, and whether it is well."""
    from flows.stack import Stack

    rows: list[dict[str, Any]] = [
        {"name": record.name, "running": record.alive, "well": record.alive and record.well, "address": record.address,
         "pid": record.pid, "since": datetime.fromtimestamp(record.create_time).astimezone().isoformat("T", "seconds")}
        for record in Stack(home).records().values()]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        how = "well" if row["well"] else "does not answer" if row["running"] else "has ended"
        print(f"{row['name']:<11} {how:<15} {row['address'] or '-':<22} pid {row['pid']}, since {row['since']}")
    if not rows:
        say(f"nothing of {home} is up; next: xc up{home_flag(home)}")


def doctor(*, home: Home = HOME,
           mlflow: Annotated[str, Parameter(env_var="XC_MLFLOW", help="Address of an MLflow server to look at.")] = "",
           as_json: Json = False) -> None:
    """Look at versions, cores, memory, GPU, disk, home and servers; exit code 1 where something is wrong."""
    from flows.doctor import look

    checks = look(home, mlflow)
    if as_json:
        print(json.dumps([asdict(each) for each in checks]))
    else:
        width = max(len(each.name) for each in checks)
        for each in checks:
            print(f"{'ok' if each.well else 'WRONG':<6} {each.name:<{width}} {each.told}")
            if not each.well:
                print(f"{'':<6} {'':<{width}} hint: {each.hint}")
    if wrong := [each.name for each in checks if not each.well]:
        raise ProjectError(f"{len(wrong)} of {len(checks)} things are wrong: {', '.join(wrong)}")


def _line(title: str, text: str) -> str:
    return f"{title:<11} {text}"
