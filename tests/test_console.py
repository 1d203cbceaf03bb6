"""The lines of a run, on a real terminal and where there is none."""

import os
import pty
import subprocess
import sys

import pytest

from tests.conftest import ROOT

ROUND = """
import flows.console
from xcmodels.training import Progress
flows.console.REDRAW_EVERY = flows.console.LINE_EVERY = 0.0
terminal = flows.console.Terminal()
terminal.begin("encoder round 0")
with terminal.training("encoder round 0") as (report, stop):
    for done in range(1, 4):
        report(Progress("encoder", 0, done, 4, 0.5))
terminal.line("    loss 0.1234")
terminal.step("encoder round 0", False, 75.0)
"""


def screen(text: str) -> list[str]:
    """Return what a terminal shows: a carriage return goes back, ESC[2K empties the line."""
    return [line.rpartition("\r\x1b[2K")[2] for line in text.replace("\r\n", "\n").split("\n") if line]


def on_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", ROUND], stderr=theirs, stdout=subprocess.DEVNULL, cwd=ROOT,
                          env={**os.environ, "TERM": "xterm", **environment}):
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:     # the other end has closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    return seen.decode()


def test_progress_is_redrawn_and_makes_way_for_lines():
    seen = on_terminal()
    assert "step 3 of 4" in seen and "encoder epoch 1" in seen
    assert screen(seen) == ["    loss 0.1234", "1 min 15 s  encoder round 0".rjust(29)]


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, None], ids=["dumb", "no terminal"])
def test_no_line_is_redrawn_without_a_terminal(environment):
    if environment:
        seen = on_terminal(**environment)
    else:
        seen = subprocess.run([sys.executable, "-c", ROUND], capture_output=True, text=True, cwd=ROOT).stderr
    lines = seen.replace("\r\n", "\n").splitlines()
    assert "\r" not in "".join(lines) and "\x1b" not in seen
    assert len([line for line in lines if "step" in line]) == 3
    assert lines[-2:] == ["    loss 0.1234", "1 min 15 s  encoder round 0".rjust(29)]
