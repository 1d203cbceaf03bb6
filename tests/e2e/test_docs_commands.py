"""Every command of README.md and docs/ as its readers type it: run on small data, or listed with the reason why not.

One folder stands for the reader's: `.xc` is its home, in which the pages are worked through in the order of ORDER.
"""

import doctest
import gzip
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from flows.cli.app import app
from tasks.core.manifest import MANIFEST
from tasks.core.store import Artifact, Store, digest_of
from tasks.registry.champions import score_of
from tasks.registry.register import register
from tasks.registry.tags import DIGEST, TEST
from tasks.tracking.tracker import Tracker
from tests.conftest import ROOT
from tests.support import tiny
from tests.support.docs_pages import PAGES, Command, blocks, commands, differs, python_of, spans, unmarked
from tests.support.docs_reader import ReaderFolder
from tests.support.home_services import until
from tests.support.long_tests import ALL_FAULTS
from tests.support.object_store import SECRET, Server
from tests.support.planted import write_planted
from tests.support.run_command import TRAINED, copy_results
from tests.unit.test_importing_huggingface import save
from tests.unit.test_importing_marc import xml

ORDER = ["README.md", "feedback.md", "running.md", "export.md", "labels.md", "serving.md", "operate.md", "data.md",
         "performance.md", "scaling.md", "restore.md", "tutorial.md"]
EXACT = ("head", "cat", "ls")    # whose output is shown whole
_METHOD = "a training of a method; tests/e2e/test_run_methods.py does one of each family"
_GPUS = "wants two GPUs"
_SERVICE = "wants an administrator and systemd or Docker; tests/integration/test_service_managers.py writes the files"
LISTED = {
    "make bench-claims": "hours of training; tests/training/test_claims.py tries its parts",
    "mlflow models serve -m model": "tests/integration/test_serving_http.py asks one",
    **{f"xc run --data data/wordnet --method {name}": _METHOD for name in (
        "astra", "renee", "ramen", "ramen-ance", "ramen-unidec", "siamesexml", "siamesexml++", "unidec", "depsl",
        "dpr")},
    **{f"python -m benchmarks.bench_{name}": "minutes of measuring" for name in (
        "annif", "estimates", "jobs", "loop", "frozen_layers", "classifier_step", "clustering", "walks", "prepare",
        "refresh", "search", "vector_bits", "query", "scale", "trees")},
    "python -m benchmarks.bench_storage": "wants a large home; tests/integration/test_shared_store.py times nothing",
    "xc run --data data/wordnet --budget": "minutes of training; tests/integration/test_config_file.py has it chosen",
    **dict.fromkeys(("python -m benchmarks.gpu --data", "python -m benchmarks.gpu --device"),
                    "wants a GPU; tests/integration/test_gpu_benchmark.py runs it at a small size"),
    "python -m benchmarks.held_out": "a data set of the line above; tests/unit/test_held_out.py cuts one",
    "python -m benchmarks.datasets": "packages from the network; tests/unit/test_datasets.py tries its parsers",
    **{start: "Annif; tests/integration/test_serving_annif.py runs it where ANNIF names one" for start in (
        "annif load-vocab", "annif eval", 'echo "On cats of region 3"')},
    "xc run --data tickets --method astra --processes 2": "tests/e2e/test_run_processes.py does one",
    "xc run --data LF-AmazonTitles-131K": "a training as of wordnet; tests/e2e/test_run.py has this format",
    **dict.fromkeys(("xc export encoder wordnet@champion", "xc export encoder wordnet/1"),
                    "imports for seconds; tests/integration/test_export_encoder.py types them of another model"),
    "xc run --data tickets --nodes 2": "two machines; tests/e2e/test_run_machines.py has two groups of processes",
    "srun": "Slurm; tests/unit/test_rendezvous.py reads what it sets",
    "xc run --data tickets --method astra --set table_dtype=bfloat16": "tests/training/test_method_contract.py does so",
    **dict.fromkeys(("sudo install", "sudo cp units/xc*", "xc service systemd units", "xc service compose containers",
                     "docker compose"), _SERVICE),
    "CUDA_VISIBLE_DEVICES=0 xc run": _GPUS, "CUDA_VISIBLE_DEVICES=1 xc run": _GPUS}
# From where a page types what others do, and only XC_ALL_FAULTS=1 goes on: `xc up`, a deployment, a request.
# What is its own, `--now retrain`, tests/e2e/test_deployments.py types.
AT_LENGTH = {"tutorial.md": "xc up"}
TICKETS = ["Printer on floor 2 jams,printer;hardware", "Cannot log in after password change,login;account"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Iterator[ReaderFolder]:
    """The reader's folder, with data in the places where the pages have theirs."""
    made = ReaderFolder(tmp_path_factory.mktemp("reader"), prefect_server)
    try:
        made.new_home()
        _data(made.folder)
        yield made
    finally:
        made.clear()
        made.check(["xc", "down"])


def _data(folder: Path) -> None:
    wordnet = write_planted(folder / "data" / "wordnet", train=240, test=60, labels=40)
    (wordnet / "dataset.json").write_text('{"name": "wordnet"}')
    labels = gzip.decompress((wordnet / "lbl.json.gz").read_bytes()).replace(b'"uid": "L', b'"uid": "t-')
    (wordnet / "lbl.json.gz").write_bytes(gzip.compress(labels))
    write_planted(folder / "LF-AmazonTitles-131K", train=240, test=60, labels=40)
    for anchor in (folder / "LF-AmazonTitles-131K").glob("group*"):
        anchor.unlink()
    things = ["printer", "login", "screen", "network", "keyboard", "account", "mail", "phone"]
    (folder / "tickets.csv").write_text("\n".join(["text,labels", *TICKETS, *(
        f"{thing} number {n} is broken since day {n % 9},{thing};{'hardware' if n % 2 else 'account'}"
        for n in range(30) for thing in things)]) + "\n")
    _library_files(folder)
    (folder / "new.csv").write_text('uid,text\nt-901,coffee machine\nt-902,"badge, lost or stolen"\n')


def _library_files(folder: Path) -> None:
    """Write what a library has: titles, a catalogue and full texts with subjects, their vocabulary, and a data set."""
    uris = {name: f"http://example.org/{name}" for name in ("cats", "dogs", "birds")}
    (folder / "subjects.ttl").write_text("@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n" + "".join(
        f'<{uri}> a skos:Concept ; skos:prefLabel "{name}"@en, "{name}-fi"@fi ; skos:broader <http://example.org/a> .\n'
        for name, uri in uris.items()) + '<http://example.org/a> a skos:Concept ; skos:prefLabel "animals"@en .\n')
    (folder / "subjects.csv").write_text("uri,label_en,label_fi\n" + "".join(
        f"{uri},{name},{name}-fi\n" for name, uri in uris.items()))
    texts = [(f"On {name} of region {number}", name) for number in range(20) for name in uris]
    (folder / "titles.tsv").write_text("".join(f"{text}\t<{uris[name]}>\n" for text, name in texts))
    (folder / "catalogue.xml").write_text(xml([
        [("001", f"r{number}"), ("245", "10", f"a{text} /"), ("650", " 0", f"a{name.title()}.")]
        for number, (text, name) in enumerate(texts)]))
    (folder / "reports").mkdir()
    for number, (text, name) in enumerate(texts):
        (folder / "reports" / f"{number}.txt").write_text(text)
        (folder / "reports" / f"{number}.key").write_text(f"{name}-fi\n")
    save(folder / "news", [{"headline": text, "labels": [name]} for text, name in texts])


def _own_tickets(desk: ReaderFolder) -> None:
    """A home of its own for README's tickets: the pages after it speak of one model."""
    desk.environment["XC_HOME"] = str(desk.folder / ".own")
    tiny.fresh_store(desk.folder / ".own")


def _tickets_again(desk: ReaderFolder) -> None:
    desk.environment["XC_HOME"] = str(desk.folder / ".own")


def _back(desk: ReaderFolder) -> None:
    desk.environment.pop("XC_HOME", None)


def _two_more_versions(desk: ReaderFolder) -> None:
    """Have a third version that could be the champion: it is a copy of the first one, and scored as that did."""
    store, tracker = Store(desk.home), Tracker(desk.home)
    run = tracker.start("docs", experiment="wordnet", name="docs", params={}, config_yaml="", data={}, tags={})
    with tracker.required() as client:
        first = client.get_model_version("wordnet", "1")
    for number in (2, 3):
        def write(out: Path, number: int = number) -> None:
            shutil.copytree(store.open(Artifact.of(first.tags[DIGEST])), out, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns(MANIFEST))
            (out / "copy.txt").write_text(str(number))

        made = store.publish(digest_of(["copy", number]), "retriever", {}, write)
        register(tracker, run or "", "wordnet", retriever_dir=store.open(made), retriever_digest=made.digest,
                 score=score_of(first), test_digest=first.tags[TEST], card="")


def _share(desk: ReaderFolder) -> None:
    desk.check(["xc", "data", "import", "tickets.csv", "shared/tickets", "--text", "text", "--labels", "labels"])
    shared = tiny.fresh_store(desk.folder / "shared" / "xc")
    copy_results(Store(desk.folder / ".own"), shared, TRAINED)    # so that these tickets are only prepared by Dask


def _bucket(desk: ReaderFolder) -> None:
    """Run an S3 server until the tests end, with the tickets in a bucket."""
    server = Server()
    desk.environment |= server.environment
    files = fsspec.filesystem("s3", key="test", secret=SECRET, endpoint_url=server.address, skip_instance_cache=True)
    files.mkdir("library")
    desk.check(["xc", "data", "import", "tickets.csv", "bucket/tickets", "--text", "text", "--labels", "labels"])
    for path in (desk.folder / "bucket" / "tickets").iterdir():
        files.put_file(str(path), f"library/tickets/{path.name}")


def _fewer_rows(desk: ReaderFolder) -> None:
    """Leave of the table what trains in seconds."""
    path = desk.folder / "library.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:400]))


def _retrained(desk: ReaderFolder) -> None:
    log = desk.home / "logs" / "worker-cpu.log"
    until(lambda: "Flow run 'ngame · library' - Finished in state" in log.read_text(), 600)
    # On so little data the gates may refuse version 2; on the page they do not. Another process says so: MLflow's
    # client of this one still has the database of the pages before open, which is gone.
    code, _, said = desk.type(Command("", 0, "xc promote library/2 --force --reason 'as it is on the page'"))
    assert code == 0 or "is the champion already" in said, said


def _library(desk: ReaderFolder) -> None:
    desk.new_home()
    (desk.folder / "library.py").write_text(python_of(ROOT / "docs" / "tutorial.md"))


# What happens between two commands that are not the reader's: before the first one of a page that begins so.
BEFORE: dict[tuple[str, str], Callable[[ReaderFolder], None]] = {
    ("README.md", "head -3"): _own_tickets, ("README.md", "xc up"): _back,
    ("feedback.md", "xc serve"): _tickets_again, ("running.md", "xc "): _back,
    ("running.md", "xc models"): _two_more_versions,
    ("scaling.md", "dask scheduler"): _share, ("storage.md", "xc run"): _bucket,
    ("tutorial.md", "python library.py"): _library,
    ("tutorial.md", "xc data import"): _fewer_rows, ("tutorial.md", "xc models"): _retrained}


def listed(command: Command) -> str | None:
    """Return why a command is not run."""
    return next((reason for text, reason in LISTED.items() if f"{command.text} ".startswith(f"{text} ")), None)


def made_before(command: Command, desk: ReaderFolder) -> bool:
    """Whether it is `make run` where that was typed before: it would reuse all, as in tests/e2e/test_run.py."""
    return command.text.partition(" #")[0].strip() == "make run" and any(Store(desk.home).steps())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", sorted(PAGES, key=lambda page: [*ORDER, page.name].index(page.name)),
                         ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Path, desk: ReaderFolder):
    before = {start: act for (name, start), act in BEFORE.items() if name == page.name}
    for command in commands(page):
        if command.text == AT_LENGTH.get(page.name) and not ALL_FAULTS:
            break
        if listed(command) is not None or made_before(command, desk):
            continue
        for start in [start for start in before if command.text.startswith(start)]:
            before.pop(start)(desk)
        code, out, said = desk.type(command)
        assert code == 0, f"{command}\n{out}{said}"
        wrong = "" if not command.output else differs(command.output, out, said)
        if command.text.startswith(EXACT):
            assert out.splitlines() == command.output, str(command)
        assert not wrong, f"{command}\n{wrong}\n{out}{said}"
    for block in blocks(page) if page == ROOT / "README.md" else ():
        if block.language == "python":
            desk.check(["python", "-c", block.text])
    desk.clear()


def test_what_is_not_run_is_there_and_could_be():
    """No entry is of a command that is gone, and `xc` takes the words of each."""
    found = [command for page in PAGES for command in commands(page)]
    for start in LISTED:
        (command,) = [each for each in found if f"{each.text} ".startswith(f"{start} ")]
        words = shlex.split(command.text, comments=True)
        if "xc" in words:
            app.parse_args(words[words.index("xc") + 1:], exit_on_error=False, print_error=False)
    assert AT_LENGTH.items() <= {(command.page, command.text) for command in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_of_commands_is_so(page: Path):
    """Commands have a prompt; those within a line name commands and options that there are."""
    assert not unmarked(page)
    for span in (each for each in spans(page) if each.startswith("xc ")):
        command, words = app, re.findall(r"--?[a-z][a-z-]*|[a-z]+", span.removeprefix("xc "))
        while words and words[0] in command:
            command = command[words.pop(0)]
        if command.default_command is None:
            assert words == (["--help"] if command is app else []), span
            continue
        known = {name for each in command.assemble_argument_collection() for name in each.names} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, span


def test_the_example_of_the_metrics_page_is_right():
    (code,) = [block for block in blocks(ROOT / "docs" / "metrics.md") if ">>>" in block.text]
    example = doctest.DocTestParser().get_doctest(code.text, {}, code.page, code.page, code.line)
    assert not doctest.DocTestRunner().run(example).failed


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert all(f"({page.name})" in index for page in PAGES if page.name != "README.md")
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
