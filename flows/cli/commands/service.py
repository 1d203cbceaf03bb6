"""`xc service ...`: run a home's parts under systemd or as containers."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from data_contracts.errors import UsageError
from flows.cli.commands.serve import WORKERS, Workers
from flows.cli.options import HOME, Home, Mlflow, Model, environment, require_home, say, utf8
from flows.config import PORTS, Ports
from tasks.core.files import explained, making, put_file

if TYPE_CHECKING:
    from flows.services.service_manager import Setup

service = App(name="service", help="Run what xc up starts under systemd, or as containers.")
Folder = Annotated[Path, Parameter(help="Folder for the files.")]
User = Annotated[str, Parameter(help="User that the parts run as; by default the owner of HOME.")]
Name = Annotated[str, Parameter(help="First part of the names, different for each home.")]
Gpu = Annotated[bool, Parameter(help="A worker for the pool gpu too.")]
Force = Annotated[bool, Parameter(help="Replace files that are there and differ.")]
Image = Annotated[str, Parameter(help="Image that has xc as its entry point.")]


@service.command
def systemd(folder: Folder, /, *, home: Home = HOME, mlflow: Mlflow = "", ports: Ports = PORTS, model: Model = "",
            workers: Workers = 1, gpu: Gpu = False, user: User = "", name: Name = "xc", force: Force = False) -> None:
    """Write a target, and a unit for each part that xc up starts but the supervisor, into FOLDER."""
    from flows.services.systemd_units import units

    setup = _setup(home, user, name, ports=ports, model=model, workers=workers, gpu=gpu, mlflow=mlflow)
    _write(folder, units(setup), _secrets(setup), force)
    named = f"{shlex.quote(str(folder))}/{name}"
    say(f"next       sudo cp {named}.target {named}-*.service /etc/systemd/system/ && sudo systemctl daemon-reload && "
        f"sudo systemctl enable --now {name}.target")


@service.command
def compose(folder: Folder, /, *, image: Image = "xcflow", home: Home = HOME, mlflow: Mlflow = "",
            ports: Ports = PORTS, model: Model = "", workers: Workers = 1, gpu: Gpu = False, user: User = "",
            force: Force = False) -> None:
    """Write compose.yaml into FOLDER, with a container for each part that xc up starts but the supervisor."""
    from flows.services.compose import compose as text_of

    setup = _setup(home, user, "xc", ports=ports, model=model, workers=workers, gpu=gpu, mlflow=mlflow, number=True)
    secrets = _secrets(setup)
    _write(folder, {"compose.yaml": text_of(setup, image, secrets=bool(secrets))}, secrets, force)
    say(f"next       docker compose --file {shlex.quote(str(folder / 'compose.yaml'))} up --detach")


@service.command(show=False)
def run(part: str, /, *, home: Home = HOME, mlflow: Mlflow = "", ports: Ports = PORTS, model: Model = "",
        workers: Workers = 1, prepare: bool = False) -> None:
    """Become a part; service managers call it. prepare: also do what `wait` does, in the background."""
    from flows.services.service_manager import become, service_of
    from tasks.core.store import Store

    Store(home)
    environment(home)
    found = service_of(part, home, ports, mlflow=mlflow, model=model, workers=workers)
    if prepare:
        words = ["wait" if word == "run" else word for word in sys.argv[1:] if word != "--prepare"]
        subprocess.Popen([sys.executable, "-m", "flows.cli", *words], stdin=subprocess.DEVNULL)
    become(found, home.absolute(), os.environ.get("XC_MANAGER", ""))


@service.command(show=False)
def wait(part: str, /, *, home: Home = HOME, mlflow: Mlflow = "", ports: Ports = PORTS, model: Model = "",
         workers: Workers = 1) -> None:
    """Wait until a part is well, then set up what depends on it; service managers call it."""
    from flows.services.service_manager import service_of, wait_ready

    require_home(home)
    environment(home)
    wait_ready(service_of(part, home, ports, mlflow=mlflow, model=model, workers=workers), home.absolute())


def _setup(home: Path, user: str, name: str, *, ports: Ports, mlflow: str, workers: int, number: bool = False,
           **more: Any) -> "Setup":
    """Return what is to be run. number: a user is told by number, as a container does not know the names.

    Raises UsageError where there is no such home or user, two parts would have one port, or the parts would run as root
    and --user does not say so.
    """
    import pwd

    from flows.services.service_manager import Setup

    utf8(home)
    if not 1 <= workers <= WORKERS:
        raise UsageError(f"--workers must be from 1 to {WORKERS}, got {workers}")
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise UsageError(f"--name must be of letters, digits, - and _, got {name!r}")
    prefect = os.environ.get("PREFECT_API_URL", "")
    ports.check(prefect=prefect, mlflow=mlflow)
    home = home.resolve() if ".." in home.parts else home.absolute()    # systemd takes no path with .. in it
    if not home.is_dir():
        raise UsageError(f"there is no {home}", hint="create it first, for the user that is to own it: sudo install "
                                                     f"-d -m 700 -o {user or 'USER'} {shlex.quote(str(home))}")
    if not user:
        if not (owner := home.stat().st_uid):
            raise UsageError(f"{home} is root's, and what runs in it need not be", hint="--user NAME, its owner")
        user = str(owner)
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError as error:
        raise UsageError(f"there is no user {user!r}", hint="create it, or name another: --user") from error
    return Setup(home, f"{entry.pw_uid}:{entry.pw_gid}" if number else entry.pw_name, name, ports=ports, mlflow=mlflow,
                 workers=workers, prefect=prefect, **more)


def _write(folder: Path, files: dict[str, str], secrets: dict[Path, str], force: bool) -> None:
    """Write files, each atomically, those with secrets for this user alone.

    Raises UsageError, before anything is written, where one in the folder is there and differs, or there can be none.
    """
    with making(folder):
        folder.mkdir(parents=True, exist_ok=True)
    new = {path: text for file, text in files.items()
           if not (path := folder / file).exists() or path.read_bytes() != text.encode()}
    if (there := [path for path in new if path.exists()]) and not force:
        raise UsageError(f"{there[0]} is there and differs", hint="--force replaces it, or name another folder")
    for path, text in secrets.items():
        with explained("write the addresses of the servers", path):
            put_file(text.encode(), path, os.replace)
        say(f"written    {path}, for this user alone: the servers that were there")
    for path, text in new.items():
        put_file(text.encode(), path, os.replace)
        path.chmod(0o644)
    for file in files:
        say(f"{'written' if folder / file in new else 'as it was':<10} {folder / file}")


def _secrets(setup: "Setup") -> dict[Path, str]:
    """Return HOME/service.env with addresses and passwords of existing servers; nothing where there are none.

    Raises UsageError where there are none, and the file names some of an earlier time.
    """
    from flows.services.service_manager import SERVER_VARIABLES

    path = setup.home / "service.env"
    given = {**os.environ, "XC_MLFLOW": setup.mlflow}
    values = {name: given[name] for name in SERVER_VARIABLES if given.get(name)}
    if not values:
        if os.path.exists(path):    # Path.exists raises where the home is closed to this user
            raise UsageError(f"{path} names servers, and neither this shell nor --mlflow does",
                             hint="set its variables here too, or remove it")
        return {}
    if bad := [name for name, value in values.items() if not value.isprintable() or set(value) & set("\"'\\ ")]:
        raise UsageError(f"{bad[0]} has characters that an environment file cannot hold", hint="choose another")
    # in quotes compose replaces no $NAME and takes no # for a comment; systemd reads them the same way
    return {path: "".join(f"{name}='{value}'\n" for name, value in values.items())}
