"""Ctrl-C at any moment of a command: one line that says so, and exit code 130."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# A module that is importing sends the signal, as a key that is pressed just then.
AMID_IMPORT = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from flows.cli import entry
signal.signal(signal.SIGINT, entry.on_ctrl_c)
import slow
print("went on")
"""


def test_ctrl_c_amid_an_import_ends_the_process_and_is_not_lost(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "except BaseException:\n    pass\n")
    done = subprocess.run([sys.executable, "-c", AMID_IMPORT.format(folder=str(tmp_path))], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(("words", "hint"), [(["models"], ""), (["run", "--data", "d"], "the same command resumes")])
def test_only_what_goes_on_where_it_was_stopped_says_that_it_resumes(monkeypatch, capsys, words, hint):
    from flows.cli import app, entry

    def pressed(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(app, "app", pressed)
    before = signal.signal(signal.SIGINT, entry.on_ctrl_c)
    try:
        with pytest.raises(SystemExit) as ended:
            app.main(words)
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 130 and said == ["error: interrupted", *([f"hint: {hint}"] if hint else [])]
