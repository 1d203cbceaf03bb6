"""Packages of Debian, npm and PyPI, fetched by name with their own clients and unpacked; none of their code is run."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import ProjectError

TIMEOUT = 300.0
LANGUAGES = ("en", "de")    # of Debian's package descriptions
_APT_HELPER = "/usr/lib/apt/apt-helper"


class Fetcher:
    """Fetches each package once and unpacks it below a folder; apt's own lists and settings do not change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._updated = False

    def package_list(self) -> str:
        """Return the newest version of each package as paragraphs of "Field: value" lines, with English synopses."""
        self._lists()
        return self._apt("apt-cache", "dumpavail")

    def release(self) -> str:
        """Return the name and date of each list that the packages are from."""
        headers = (next(paragraphs(path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[1]))
                for path in sorted(self._lists().glob("*_InRelease")))
        return ", ".join(f"{fields.get('Label', '')} {fields.get('Codename', '')} of {fields.get('Date', '')}"
                         for fields in headers)

    def descriptions(self, language: str) -> str:
        """Return long descriptions in a language: paragraphs with, for example, Description-md5 and Description-de."""
        paths = sorted(self._lists().glob(f"*_i18n_Translation-{language}*"))
        return "\n".join(_run([_APT_HELPER, "cat-file", str(path)], self.folder) for path in paths)

    def debian(self, name: str) -> Path:
        """Return the folder in which a Debian package is unpacked. Raises ProjectError where it cannot be fetched."""
        work = self.folder / "debian" / name
        if not work.exists():
            self._lists()
            work.mkdir(parents=True)
            self._apt("apt-get", "download", name, work=work)
            _run(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], work)
        return work / "unpacked"

    def version(self, name: str) -> str:
        """Return "name version" of a fetched Debian package."""
        package, version, _ = _only(self.folder / "debian" / name, "*.deb").name.split("_", 2)
        return f"{package} {version.replace('%3a', ':')}"

    def npm(self, name: str) -> Path:
        """Return the folder in which an npm package, given as name@version, is unpacked."""
        work = self.folder / "npm" / name.replace("/", "_")
        if not work.exists():
            work.mkdir(parents=True)
            _run(["npm", "pack", name, "--ignore-scripts"], work)
            with tarfile.open(_only(work, "*.tgz")) as archive:
                archive.extractall(work, filter="data")
        return work / "package"

    def pypi(self, name: str) -> Path:
        """Return the folder in which a wheel of PyPI, given as name==version, is unpacked."""
        work = self.folder / "pypi" / name
        if not work.exists():
            work.mkdir(parents=True)
            _run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", name], work)
            with zipfile.ZipFile(_only(work, "*.whl")) as archive:
                archive.extractall(work / "unpacked")
        return work / "unpacked"

    def _lists(self) -> Path:
        """Return the folder of the lists of packages, fetched at the first call that can."""
        lists = self.folder / "apt" / "lists"
        if not self._updated:
            for part in (lists, self.folder / "apt" / "cache"):
                part.mkdir(parents=True, exist_ok=True)
            self._apt("apt-get", "update")
            self._updated = True
        return lists

    def _apt(self, *arguments: str, work: Path | None = None) -> str:
        own = self.folder / "apt"
        # Error-Mode: by default an update that could fetch nothing ends with code 0
        options = ["APT::Update::Error-Mode=any", f"Dir::State::Lists={own}/lists", f"Dir::Cache={own}/cache",
                   "APT::Sandbox::User=root", f"Acquire::Languages={','.join(LANGUAGES)}"]
        return _run([arguments[0], *(part for option in options for part in ("-o", option)), *arguments[1:]],
                    work or self.folder)


def _run(words: list[str], work: Path) -> str:
    """Run a program in a folder; return its output.

    Raises ProjectError with the last line of stderr, and where it takes more than TIMEOUT seconds.
    """
    if shutil.which(words[0]) is None:
        raise ProjectError(f"{words[0]} is not installed",
                           hint="building these data sets needs Debian or Ubuntu; icons and emoji only need npm, "
                                "diseases only pip")
    short = " ".join([words[0], *words[-2:]])
    try:
        done = subprocess.run(words, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT,
                              check=False)
    except subprocess.TimeoutExpired as error:
        raise ProjectError(f"{short} took more than {TIMEOUT:g} s",
                           hint="look whether its server can be reached, and run the same command again") from error
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise ProjectError(f"{short} ended with code {done.returncode}: "
                           f"{errors[-1] if errors else 'no message'}")
    return done.stdout.decode(errors="replace")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ProjectError(f"{folder} has {len(found)} files {pattern}, expected one")
    return found[0]


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a Debian control file as fields by name; continuation lines follow after a newline."""
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = fields.get(name, "") + "\n" + line[1:]
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields
