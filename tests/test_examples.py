"""The examples run as they stand."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, user_environment


@pytest.mark.commands
def test_one_page_goes_from_attention_to_a_model_that_learned():
    path = ROOT / "examples" / "one_page.py"
    assert len(path.read_text().splitlines()) <= 100
    done = subprocess.run(
        [sys.executable, str(path), "--steps=150"],
        cwd=ROOT, env=user_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loss = float(re.search(r"test loss  ([\d.]+) nats", done.stdout)[1])
    assert loss < 2.6  # single letters alone have 3.3
    assert "ROMEO:" in done.stdout
