"""The site: its commands are the README's, its links lead somewhere, a browser shows it quietly."""

import importlib
import itertools
import re
import shutil

import pytest

from tests.conftest import ROOT, command
from tests.test_readme import COMMANDS
from tests.test_reports import browser, complaints  # noqa: F401
from transformer_jax.options.config import load_config

PAGES = sorted((ROOT / "docs").glob("*.md"))


def lines_of(page):
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_every_command_is_one_that_the_readme_runs():
    """tests/test_readme.py runs each of the README's, letter by letter."""
    found = [line for page in PAGES for line in lines_of(page)]
    assert len(found) >= 20
    for line in found:
        assert line in COMMANDS, line


def test_python_examples_run(monkeypatch):
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    held = {}
    exec(compile(block[1], "index.md", "exec"), held)
    assert held["logits"].shape == (8, 64, 65)


def test_the_page_on_runs_does_what_it_says(tiny_run, monkeypatch, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "runs" / "shakespeare")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(), re.DOTALL)
    held = {}
    exec(compile("\n".join(blocks), "runs.md", "exec"), held)
    assert len(held["several"]) == 2
    assert held["each"].shape == (8,)
    assert held["whole"] > 1


def test_the_reference_names_modules_that_are_there():
    from experiments.site import _REFERENCE

    for module in itertools.chain.from_iterable(_REFERENCE.values()):
        importlib.import_module(f"transformer_jax.{module}")


def test_studies_name_configs_that_load():
    for path in sorted((ROOT / "configs" / "ablations").glob("*.py")):
        if path.stem != "__init__":
            load_config(str(path), {})
            text = path.read_text()
            assert f"--config=configs/ablations/{path.name}" in text, path
            assert re.search(r"Takes: +.*(second|minute)", text), path


@pytest.mark.browser
def test_the_site_is_built_and_shown(browser, tmp_path):  # noqa: F811
    from selenium.webdriver.common.by import By

    pytest.importorskip("material", reason="make docs installs it")
    done = command("site", f"--out={tmp_path / 'site'}", timeout=600)
    assert done.returncode == 0, done.stderr
    found = sorted((tmp_path / "site").rglob("*.html"))
    pages = [page for page in found if page.name != "404.html"]  # that is for a server's root
    named = {str(page.relative_to(tmp_path / "site")) for page in pages}
    assert named >= {"index.html", "how-to.html", "course.html", "catalogue.html"}
    assert {f"studies/{name}.html" for name in ("index", "positions", "heads")} <= named
    for page in pages:
        for width, height in ((1300, 900), (400, 800)):
            browser.set_window_size(width, height)
            browser.get(f"file://{page}")
            assert browser.find_elements(By.CSS_SELECTOR, "h1"), page
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            seen = browser.execute_script("return window.innerWidth")
            assert wide <= seen + 1, f"{page} is {wide} wide in a window of {seen}"
        assert complaints(browser) == [], page
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert all(name.startswith("file:") for name in loaded), loaded
