"""How do Annif's own backends and `xc serve` behind its `http` backend compare, measured by `annif eval`?

    python -m benchmarks.bench_annif ANNIF HOME DATA [FOLDER] [tests]

ANNIF: an annif executable with the extra omikuji. DATA: a data set that `xc data import --vocabulary` wrote, on which
the model of HOME was trained. FOLDER: for Annif's files; what is trained there already is measured as it is. tests:
how many test texts.
"""

import filecmp
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.arguments import Count, Folder, JsonLines, Program, run
from benchmarks.bench_serving import served
from benchmarks.bench_trees import text
from benchmarks.held_out import read_rows
from data_contracts.errors import UsageError

# As Annif's wiki recommends for English: the defaults of each backend, with a stemmer.
TRAINED = {"omikuji": "backend=omikuji", "mllm": "backend=mllm",
           "bonsai": "backend=omikuji\ncluster_balanced=False\ncluster_k=100\nmax_depth=3"}
METRICS = ("F1@5", "NDCG", "NDCG@5", "Precision@1", "Precision@5")
LIMITS = range(1, 6)
LIMIT_SHARE = 5    # test texts for one other text by which a limit is chosen


def main(annif: Program, home: Folder, data: JsonLines, folder: Path = Path("annif-bench"),
         tests: Count = 5000) -> None:
    """Train Annif's projects on the training texts, then evaluate each on the same test texts.

    The limit of the second F1@5 is each project's best on a fifth as many other test texts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_corpora(data, folder, tests)
    with served(home) as (_, port, name):
        projects = {**TRAINED, "http": f"backend=http\nendpoint=http://127.0.0.1:{port}/v1/projects/{name}/suggest"}
        (folder / "projects.cfg").write_text("\n".join(
            f"[{project}]\nname={project}\nlanguage=en\nvocab=subjects\nanalyzer=snowball(english)\n{settings}\n"
            for project, settings in projects.items()))
        ask = Annif(annif, folder)
        ask("load-vocab", "subjects", "subjects.tsv", "--language", "en")
        for project in TRAINED:
            if not any((folder / "data" / "projects" / project).glob("*model*")):
                started = time.monotonic()
                ask("train", project, "train.tsv", "--jobs", "1")
                print(f"{project} was trained in {time.monotonic() - started:,.0f} s", flush=True)
        print("".join(f"{head:>13}" for head in ("project", *METRICS, "limit", "F1@5")))
        for project in projects:
            figures = [100 * value for value in ask.measure(project, "test.tsv", 10, METRICS)]
            best = max(LIMITS, key=lambda limit: ask.measure(project, "validation.tsv", limit)[0])
            figures.append(100 * ask.measure(project, "test.tsv", best)[0])
            shown = [f"{figure:.2f}" for figure in figures]
            shown.insert(-1, f"{best}")
            print("".join(f"{each:>13}" for each in (project, *shown)), flush=True)


class Annif:
    """Annif's command line in a folder with projects.cfg."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = str(Path(shutil.which(program) or program).absolute()), folder

    def __call__(self, *words: str) -> None:
        """Run a command; its output goes to annif.log."""
        with (self.folder / "annif.log").open("a") as log:
            subprocess.run([self.program, *words], cwd=self.folder, check=True, stdout=log, stderr=log,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})

    def measure(self, project: str, corpus: str, limit: int, metrics: Sequence[str] = METRICS[:1]) -> list[float]:
        """Return the metrics of `annif eval`, 0 to 1, of at most `limit` subjects a text."""
        self("eval", project, corpus, "--limit", f"{limit}", "--metrics-file", "metrics.json",
             *(word for metric in metrics for word in ("--metric", metric)))
        found = json.loads((self.folder / "metrics.json").read_text())
        return [found[metric] for metric in metrics]


def write_corpora(data: Path, folder: Path, tests: int) -> None:
    """Write a data set as Annif's vocabulary and corpora: all training texts, and some test texts drawn by seed 0.

    Raises UsageError where there are too few test texts, or where the folder has the corpora of other training texts,
    on which its projects were trained.
    """
    labels = list(read_rows(data / "lbl.json.gz"))

    def lines(name: str) -> Iterator[str]:
        for row in read_rows(data / name):
            uris = " ".join(f"<{labels[number]['uid']}>" for number in row["target_ind"])
            yield f"{text(row)}\t{uris}\n"

    drawn = list(lines("tst.json.gz"))
    others = tests // LIMIT_SHARE
    if not others or len(drawn) < tests + others:
        raise UsageError(f"tests must be {LIMIT_SHARE} to {LIMIT_SHARE * len(drawn) // (LIMIT_SHARE + 1)}, got {tests}",
                         hint=f"{data} has {len(drawn):,} test texts, and a fifth as many others choose the limits")
    train, new = folder / "train.tsv", folder / "train.tsv.new"
    with new.open("w") as file:
        file.writelines(lines("trn.json.gz"))
    if train.exists() and not filecmp.cmp(train, new, shallow=False):
        new.unlink()
        raise UsageError(f"{folder} has projects of other training texts than {data}", hint="name another FOLDER")
    new.replace(train)    # whole, or not there
    (folder / "subjects.tsv").write_text("".join(f"<{row['uid']}>\t{row['title']}\n" for row in labels))
    random.Random(0).shuffle(drawn)
    (folder / "test.tsv").write_text("".join(drawn[:tests]))
    (folder / "validation.tsv").write_text("".join(drawn[tests:tests + others]))


if __name__ == "__main__":
    run(main, __doc__)
