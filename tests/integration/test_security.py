"""What the code does with nothing that it is fed: unpickle, unpack, trust its headers; and what it is made of."""

import ast
import importlib.metadata
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.support.running_server import ServedModels
from tests.support.tiny import tiny_retriever
from tools.sbom import bill, pinned
from xcmodels.retrieval.retriever import Retriever

PACKAGES = ("data_contracts", "flows", "serving", "tasks", "xcflow", "xcmodels")
FORBIDDEN = frozenset({"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = frozenset({
    "torch.load", "jit.load", "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "os.system",
    "os.popen", "importlib.import_module"})
METHODS = frozenset({"read_pickle", "extractall", "unpack_archive"})
HOSTILE = "<script>alert(1)</script> \x1b]0;title\x07\x1b[2J\r\nX: y\x9b31m {{ 7*7 }}"
KEYWORDS = {"allow_pickle": False, "trust_remote_code": False, "weights_only": True, "shell": False, "autoescape": True}
NAMED = "app.generate_completion"    # its `shell` is the name of one, and runs nothing


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def broken_rules(tree: ast.Module) -> Iterator[str]:
    """Yield what a module does that no module may."""
    yield from (f"imports {name}" for name in imported(tree) if name.partition(".")[0] in FORBIDDEN)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in BUILTINS or name.endswith(tuple(CALLS)) or name.rpartition(".")[2] in METHODS:
            yield name
        given = {each.arg: ast.unparse(each.value) for each in node.keywords}
        yield from (f"{name}({key}={given[key]})" for key, value in KEYWORDS.items()
                    if given.get(key, str(value)) != str(value) and name != NAMED)
        if "Auto" in name and name.endswith("from_pretrained") and "trust_remote_code" not in given:
            yield f"{name} without trust_remote_code=False"
        if name.endswith("Environment") and "autoescape" not in given:
            yield f"{name} without autoescape=True"


def test_no_module_loads_what_may_run_or_unpacks_what_may_lead_elsewhere():
    found = [(path, rule) for path, tree in trees() for rule in broken_rules(tree)]
    assert found == []


@pytest.mark.parametrize("code", [
    "import pickle", "from joblib import load", "torch.load(path)", "yaml.load(text)",
    "np.load(path, allow_pickle=True)", "AutoModel.from_pretrained(name)",
    "AutoModel.from_pretrained(name, trust_remote_code=True)", "exec(code)",
    "tar.extractall(out)", "subprocess.run(line, shell=True)", "importlib.import_module(name)", "Environment()"])
def test_the_walk_sees_what_it_is_for(code):
    assert list(broken_rules(ast.parse(code)))


def test_what_is_imported_is_declared_and_what_is_pinned_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["dependencies"] + project["optional-dependencies"]["export"]
    declared = {canonicalize_name(each.name): each for each in map(Requirement, named)}
    of = importlib.metadata.packages_distributions()
    used = {name.partition(".")[0] for _, tree in trees() for name in imported(tree)} - {*PACKAGES, "tests"}
    strange = {name: of.get(name) for name in used - sys.stdlib_module_names
               if not declared.keys() & {canonicalize_name(each) for each in of.get(name, [])}}
    assert strange == {}
    pins = pinned((ROOT / "constraints.txt").read_text())
    assert [f"{each} is pinned to {pins.get(name)}" for name, each in declared.items()
            if not each.specifier.contains(pins.get(name, "0"))] == []


def test_the_bill_of_materials_names_what_a_release_installs_and_is_reproducible():
    pins = pinned((ROOT / "constraints.txt").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = bill(pins, project)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6") and made == bill(pins, project)
    listed = {each["name"]: each for each in made["components"]}
    assert {each["purl"] for each in listed.values()} == {f"pkg:pypi/{name}@{pins[name]}" for name in listed}
    assert listed.keys() >= {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    assert not listed.keys() & {"hypothesis", "mypy", "onnxruntime", "pytest", "ruff"}    # of the extra `dev`
    assert {name: listed[name]["scope"] for name in ("torch", "fsspec", "onnx")} == {
        "torch": "required", "fsspec": "required", "onnx": "optional"}
    licences = {name: each.get("licenses", [{}])[0].get("expression") for name, each in listed.items()}
    assert (licences["rich"], licences["httpx"], licences["sniffio"]) == ("MIT", "BSD-3-Clause", "MIT OR Apache-2.0")
    assert sum(map(bool, licences.values())) > .8 * len(listed)


def test_the_bill_of_materials_links_what_needs_each_other_here():
    made = bill(pinned((ROOT / "constraints.txt").read_text()),
                tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    names = {each["bom-ref"]: each["name"] for each in [*made["components"], made["metadata"]["component"]]}
    links = {names[each["ref"]]: {names[ref] for ref in each["dependsOn"]} for each in made["dependencies"]}
    assert links.keys() == set(names.values()) and {"torch", "sentence-transformers"} <= links["xcflow"]
    assert "httpcore" in links["httpx"] and "h2" in links["httpx"]    # Prefect asks for its extra http2
    assert links["scipy"] == {"numpy"}    # its extra `test` asks for pytest, and nothing here for that extra
    reached, todo = set(), ["xcflow"]
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += links[name]
    assert reached == links.keys()


def test_a_bill_of_materials_of_other_versions_is_refused():
    pins = pinned((ROOT / "constraints.txt").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for other, said in (({"numpy": "1"}, "numpy==1 is pinned and"), ({"not-there": "1"}, "pinned but not installed")):
        with pytest.raises(ValueError, match=said):
            bill(pins | other, project)


class Evil:
    """Leaves a file where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_pickle_posing_as_any_file_of_a_retriever_is_refused_and_not_executed(tmp_path):
    """As if its sha256 were right, too; the store would not let it come to a parser.

    An archive in the place of an array is mapped lazily: it is refused where its numbers are asked for.
    """
    whole, trace = tiny_retriever(tmp_path), tmp_path / "executed"
    evil = pickle.dumps(Evil(trace))
    as_array, archive = io.BytesIO(), io.BytesIO()
    np.save(as_array, np.array([Evil(trace)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("data.pkl", evil)
        packed.writestr("archive/data.pkl", evil)
    taken = []
    for number, file in enumerate(sorted(each for each in whole.rglob("*") if each.is_file())):
        for kind, data in (("pickle", evil), ("array", as_array.getvalue()), ("zip", archive.getvalue())):
            folder = tmp_path / f"{number}-{kind}"
            shutil.copytree(whole, folder)
            (folder / file.relative_to(whole)).write_bytes(data)
            try:
                retriever = Retriever.load(folder)
                retriever.explain("a wolf", retriever.predict(["a wolf"])[0])
                taken.append((file.name, kind))
            except Exception:
                shutil.rmtree(folder)
            assert not trace.exists(), (file, kind)
    assert taken == []


def test_hostile_texts_do_not_steer_a_terminal(tmp_path, cli):
    """In labels as they are stored, in a file of labels, in questions, in names of models and files."""
    models = ServedModels(tmp_path / "home")
    models.add(titles=[f"{HOSTILE} {number}" for number in range(50)])
    (tmp_path / "labels.csv").write_text(f'uid,text\nx:1,"{HOSTILE}\u202e"\n"{HOSTILE}",=cmd\n')
    home = ("--home", str(models.home))
    told = []
    for words in (("predict", HOSTILE, "--k", "50"), ("labels", "add", str(tmp_path / "labels.csv")),
                  ("labels", "list"), ("predict", "cmd", "--k", "50"), ("models",),
                  ("labels", "list", "--json"), ("predict", HOSTILE, "--k", "50", "--format", "csv"),
                  ("predict", "x", "--model", HOSTILE), ("labels", "remove", f"{tmp_path}/{HOSTILE}")):
        code, out, said = cli(*words, *home)
        told.append((code, out + said))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + said), (words, out, said)
    assert [code for code, _ in told] == [0, 0, 0, 0, 0, 0, 0, 2, 2]
    assert "<script>" in told[2][1]    # what is inert is still there
    assert "\u202e" not in told[2][1], "it would turn around what follows it"


def test_tokens_are_compared_in_constant_time():
    """A comparison that ends at the first difference tells how much of a token is right."""
    found = [(path, ast.unparse(node)) for path, tree in trees() if path.startswith("serving/")
             for node in ast.walk(tree) if isinstance(node, ast.Compare)
             and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
             and any("token" in ast.unparse(side) and not isinstance(side, ast.Constant)
                     for side in (node.left, *node.comparators))]
    assert found == []
    for path in ("http/guard.py", "mlflow_server.py"):    # whoever asks for a token or a password
        assert "hmac.compare_digest(" in (ROOT / "serving" / path).read_text(), path


LIMITED = """
import resource, sys
from pathlib import Path
limit = 3 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from data_contracts.errors import ProjectError
from tasks.data.sources.importing import import_file
from tasks.data.sources.sparse import _load_matrix
for name in sys.argv[1:]:
    path = Path(name)
    try:
        if path.suffix == ".parquet":
            import_file(path, path.with_suffix(""), text="text", labels="labels")
        else:
            _load_matrix(path)
        print("read", flush=True)
    except ProjectError as error:
        print("refused", len(str(error).splitlines()), flush=True)
"""


def outcomes(files):
    """Read files in a process of little memory; -> its exit code, "read" or "refused" for each, its last words."""
    done = subprocess.run([sys.executable, "-c", LIMITED, *map(str, files)], capture_output=True, text=True,
                          timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout.splitlines(), done.stderr[-2000:]


def test_hostile_parquet_is_refused_by_a_process_of_little_memory(tmp_path):
    rng = np.random.default_rng(0)
    good = tmp_path / "good.parquet"
    rows = range(300)
    pq.write_table(pa.table({"text": [f"text {n}" for n in rows], "labels": [f"l{n % 7}" for n in rows]}), good)
    data, files = good.read_bytes(), []
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for number in range(60):
        hostile = bytearray(data)
        if number < 50:    # in the footer and in the headers of pages
            first, end = (footer, len(data) - 8) if number % 2 else (4, 200)
            for at in rng.integers(first, end, rng.integers(1, 4)):
                hostile[at] = rng.integers(256)
        else:    # the footer's length
            hostile[-8:-4] = int(rng.integers(1 << 32)).to_bytes(4, "little")
        files.append(tmp_path / f"{number}.parquet")
        files[-1].write_bytes(hostile)
    code, told, said = outcomes([good, *files])
    assert (code, len(told)) == (0, len(files) + 1), (told[-1:], said)
    assert told[0] == "read" and sum(each.startswith("refused") for each in told) > 20


def test_a_matrix_that_claims_or_unpacks_to_more_than_there_is_is_refused(tmp_path):
    def header(shape, kind="<i4"):
        return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + (
            f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape},), }}".ljust(117) + "\n").encode()

    files = []
    for number, (shape, body) in enumerate([(10**15, b""), (10**11, b""), (1 << 30, bytes(1 << 20)), (-1, b"")]):
        files.append(tmp_path / f"{number}.npz")
        with zipfile.ZipFile(files[-1], "w", zipfile.ZIP_DEFLATED) as packed:
            for part in ("indices", "indptr", "data"):
                packed.writestr(f"{part}.npy", header(shape) + body)
            packed.writestr("shape.npy", header(2, "<i8") + np.array([3, 3]).tobytes())
            packed.writestr("format.npy", header(1, "|S3").replace(b"(1,)", b"()  ") + b"csr")
            packed.writestr("../../evil.npy", header(1) + bytes(4))
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed, \
            packed.open("indptr.npy", "w", force_zip64=True) as part:
        part.write(header(1 << 30))
        for _ in range(1 << 8):
            part.write(bytes(1 << 24))
    code, told, said = outcomes([*files, bomb])
    assert (code, [each.split()[0] for each in told]) == (0, ["refused"] * 5), (told, said)
    assert not (tmp_path.parent / "evil.npy").exists()
