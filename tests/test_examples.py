"""The examples run as they stand."""

import re
import warnings

import nbclient
import nbformat
import pytest

from tests.conftest import ROOT, run_python


@pytest.mark.commands
@pytest.mark.as_user  # it trains for long
def test_one_page_goes_from_attention_to_a_model_that_learned():
    path = ROOT / "examples" / "one_page.py"
    assert len(path.read_text().splitlines()) <= 100
    done = run_python(path, "--steps=150")
    assert done.returncode == 0, done.stderr
    loss = float(re.search(r"test loss  ([\d.]+) nats", done.stdout)[1])
    assert loss < 2.6  # single letters alone have 3.3
    assert "ROMEO:" in done.stdout


def outputs_of(path):
    """Runs a notebook in a kernel of its own; returns what its cells gave, or fails with an error."""
    notebook = nbformat.read(path, as_version=4)
    runner = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": ROOT}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's machinery
        runner.execute()
    return str([cell.get("outputs") for cell in notebook.cells])


@pytest.mark.commands
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("first_hour", "perplexity of a known line", marks=pytest.mark.as_user),
        ("study", "in the verdict:"),
        ("course", "rows of the masked weights sum to"),
    ],
)
def test_notebooks_run_and_show_what_they_showed(name, told, tmp_path, monkeypatch):
    """In a copy, so that the folder's own runs stay."""
    for part in ("transformer_jax", "experiments", "configs", "examples"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = ROOT / "examples" / f"{name}.ipynb"
    assert told in str([c.get("outputs") for c in nbformat.read(path, as_version=4).cells])
    assert told in outputs_of(path)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_of_a_pretrained_model_runs():
    if not (ROOT / "minilm").exists():
        pytest.skip("make minilm fetches its weights")
    assert "it -> cat" in outputs_of(ROOT / "examples" / "pretrained.ipynb")
