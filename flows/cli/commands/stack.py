"""`xc up`, `xc down`, `xc status`, `xc doctor`: run and check the services of a home."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from data_contracts.errors import ProjectError, ServerError, UsageError
from flows.cli.config_file import GIVEN
from flows.cli.options import HOME, Home, Json, Mlflow, Model, environment, home_flag, say, utf8
from flows.config import PORTS, Ports
from tasks.core.remote import without_passwords
from tasks.core.wording import plural

if TYPE_CHECKING:
    from flows.services.processes import Record


def up(*, home: Home = HOME, mlflow: Mlflow = "", ports: Ports = PORTS, model: Model = "") -> None:
    """Start what is not up: Prefect server, MLflow server, worker, app; they stay until `xc down`."""
    from flows.services.definitions import require_prefect, services
    from flows.services.stack import Stack
    from tasks.core.devices import gpus
    from tasks.core.store import Store
    from tasks.tracking.mlflow_client import probe

    prefect = os.environ.get("PREFECT_API_URL", "")
    utf8(home)
    stack = Stack(home)
    ports = _kept(ports, stack.records(), home)
    ports.check(prefect=prefect, mlflow=mlflow)
    Store(home)
    if managers := stack.managers():
        raise UsageError(f"{home} is run by {' and '.join(managers)}, which starts its parts",
                         hint="start them there, or stop them there first")
    if prefect:
        require_prefect(home)
    if mlflow:
        probe(mlflow)
    model = _model_of_app(home, mlflow, model, stack.running("app"))
    parts = services(home, ports, prefect=prefect, mlflow=mlflow, model=model, gpu=gpus() > 0)
    started = stack.up(parts, say, f"xc down{home_flag(home)}; xc up{home_flag(home)}; its log is in {stack.logs}")
    for title, address in (("Prefect", prefect), ("MLflow", mlflow)):
        if address:
            say(_line(title, f"{without_passwords(address)}, which was there: not started"))
    asked = {part.name: part.address for part in parts if part.flag.removeprefix("--") in GIVEN.sources}
    for record in stack.records().values():
        if record.name not in started:
            say(_line(record.title, f"already up{record.address and ': '}{record.address}"
                                    f"{_not_as_asked(record, asked, model, home)}"))
    for title, address in (("Prefect", prefect), ("MLflow", mlflow)):
        if not address:
            say(_line(f"sign in to {title} with the line in", str(stack.home / title.lower() / "password")))
    say(_line("logs", str(stack.logs)))
    say(_line("next", f"xc deploy --data DIR{home_flag(home)}; xc down{home_flag(home)} ends what was started"))


def down(*, home: Home = HOME) -> None:
    """End what `xc up` started in this home, and all that it started; what is kept in the home stays."""
    environment(home)
    from flows.services.stack import Stack

    stack = Stack(home)
    ended = stack.down(say)
    if managers := stack.managers():
        say(f"what {' and '.join(managers)} runs of {home} is left to it: stop it there")
    elif not ended:
        say(f"nothing of {home} is up")


def status(*, home: Home = HOME, as_json: Json = False) -> None:
    """List what `xc up` started in this home: where, since when, and how it is; exit code 5 where one is not well."""
    environment(home)
    from flows.services.processes import ENDED, WELL
    from flows.services.stack import Stack

    rows: list[dict[str, Any]] = [
        {"name": record.name, "state": record.state, "address": record.address,
         "pid": record.pid, "since": datetime.fromtimestamp(record.create_time).astimezone().isoformat("T", "seconds"),
         "restarts": record.restarts, "manager": record.manager} for record in Stack(home).records().values()]
    for row in rows:
        row["running"], row["well"] = row["state"] != ENDED, row["state"] == WELL
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            again = f", restarts: {row['restarts']}" if row["restarts"] else ""
            again += f", run by {row['manager']}" if row["manager"] else ""
            print(f"{row['name']:<11} {row['state']:<15} {row['address'] or '-':<22} pid {row['pid']}, "
                  f"since {row['since']}{again}")
    if not rows:
        say(f"nothing of {home} is up; next: xc up{home_flag(home)}")
    if wrong := [f"{row['name']} {row['state']}" for row in rows if not row["well"]]:
        managers = {row["manager"] for row in rows if row["manager"]}
        raise ServerError(f"of {plural(len(rows), 'part')}: {', '.join(wrong)}",
                          hint=f"start it by {' and '.join(sorted(managers))}" if managers else
                          f"xc up{home_flag(home)} starts what has ended; where that does not help, "
                          f"xc down{home_flag(home)} first")


def doctor(*, home: Home = HOME, mlflow: Mlflow = "", as_json: Json = False) -> None:
    """Look at versions, cores, memory, GPU, disk, home and servers; exit code 1 where something is wrong."""
    from flows.cli.doctor import run_checks

    checks = run_checks(home, mlflow)
    if as_json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{'ok' if check.well else 'WRONG':<6} {check.name:<{width}} {check.told}")
            if not check.well:
                print(f"{'':<6} {'':<{width}} hint: {check.hint}")
    if wrong := [check.name for check in checks if not check.well]:
        raise ProjectError(f"{len(wrong)} of {len(checks)} things {'is' if len(wrong) == 1 else 'are'} wrong: "
                           f"{', '.join(wrong)}")


def _model_of_app(home: Path, mlflow: str, model: str, running: "Record | None") -> str:
    """Return the model that the app is to serve, "" for the first that is registered; say so where there is none yet.

    running: the app, where it is up. Raises UsageError where none is named, and there are several.
    """
    from tasks.registry.resolve import model_names, only_model, parts_of
    from tasks.tracking.tracker import Tracker

    tracker = Tracker(home, mlflow or None)
    with suppress(ServerError):    # the app waits for MLflow, too
        if not model:
            return only_model(tracker) if running is None else ""    # one that was registered since changes nothing
        if (known := model_names(tracker)) and parts_of(model)[0] not in known:
            say(_line("app", f"waits for a model {model!r}; registered: {', '.join(known)}"))
    return model


def _kept(ports: Ports, records: Mapping[str, "Record"], home: Path) -> Ports:
    """Return the ports with those that are not asked for as they were: what has ended starts again where it was.

    Raises UsageError where what has ended is asked for at another port than parts that are up know it at.
    """
    for name, flag in (("prefect", "prefect-port"), ("mlflow", "mlflow-port"), ("app", "port")):
        if name not in records or not (port := urlsplit(records[name].address).port):
            continue
        server = records[name]
        users = [record.title for record in records.values() if record.alive and record is not server
                 and any(value.startswith(server.address) for value in record.environment.values())]
        if flag not in GIVEN.sources:
            ports = replace(ports, **{name: port})
        elif getattr(ports, name) != port and users and not server.alive:
            raise UsageError(f"--{flag} {getattr(ports, name)}: {' and '.join(users)} still "
                             f"{'asks' if len(users) == 1 else 'ask'} {server.title} at {server.address}",
                             hint=f"first xc down{home_flag(home)}, or leave --{flag} out")
    return ports


def _not_as_asked(record: "Record", addresses: Mapping[str, str], model: str, home: Path) -> str:
    """Return in which way a part that is up is not what was asked for; addresses: those asked for, by part."""
    other = ["at the port"] if addresses.get(record.name, record.address) != record.address else []
    if record.name == "app" and model and "--model" in record.command and model not in record.command:
        other.append("for the model")
    return f", not {' and '.join(other)} that was asked for: first xc down{home_flag(home)}" if other else ""


def _line(title: str, text: str) -> str:
    return f"{title:<11} {text}"
