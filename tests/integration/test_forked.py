"""A forked command, as most tests run `xc`, is one that Python starts: see tests/support/forked.py."""

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.support.forked import Forked, start_xc


@pytest.mark.parametrize("words", [("presets", "--json"), ("plan", "--data", "nowhere")])
def test_a_forked_command_is_one_that_python_starts(tmp_path, words):
    started = subprocess.run([sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True, cwd=tmp_path,
                             env={**os.environ, "PYTHONPATH": str(ROOT)})
    with start_xc(*words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as forked:
        assert isinstance(forked, Forked) and os.getpgid(forked.pid) == os.getpgid(0)
        assert forked.communicate(timeout=60) == (started.stdout, started.stderr)
    assert forked.returncode == started.returncode


def test_a_forked_command_can_be_killed(tmp_path):
    with start_xc("serve", "--wait", "--home", str(tmp_path), "--port", "0", start_new_session=True,
                  stderr=subprocess.PIPE) as forked:
        assert forked.poll() is None and os.getpgid(forked.pid) == forked.pid
        os.killpg(forked.pid, signal.SIGKILL)
    assert forked.returncode == -signal.SIGKILL
