"""What a benchmark trains in processes of its own ends with it."""

import subprocess
import sys

import psutil
import pytest

from tests.conftest import ROOT
from tests.support.running_server import within

SLEEPING = """
import time
from benchmarks.measuring import process_pool

if __name__ == "__main__":
    with process_pool(2) as pool:
        jobs = [pool.submit(time.sleep, 300) for _ in range(2)]
        print("asleep", flush=True)
        jobs[0].result()
"""


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_the_processes_of_a_benchmark_end_with_it(tmp_path, end):
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    with subprocess.Popen([sys.executable, str(tmp_path / "sleeping.py")], env={"PYTHONPATH": str(ROOT)}, text=True,
                          stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout.readline() == "asleep\n"

        def workers() -> list[psutil.Process]:
            children = psutil.Process(benchmark.pid).children()
            return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

        assert within(60, lambda: len(workers()) == 2)
        ended = workers()
        getattr(benchmark, end)()
    assert within(60, lambda: not any(each.is_running() and each.status() != "zombie" for each in ended))
