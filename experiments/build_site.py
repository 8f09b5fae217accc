"""Builds the site: pages of docs/, the studies, the components and the reference.

Example:
  python -m experiments.build_site --out=site
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.command import Parser, execute
from experiments.results import RESULTS, studies
from transformer_jax.errors import InvalidInput, Stop

ROOT = Path(__file__).parents[1]
# Modules in the reference by heading, in reading order.
_REFERENCE = {
    "Shapes and masks": ("shapes", "masks"),
    "Attention and blocks": ("attention", "blocks", "positions", "feedforward", "norms"),
    "Models": (
        *("models.stack", "models.decoder", "models.encoder", "models.encoder_decoder"),
        *("models.vision", "models.recurrent"),
    ),
    "Other components": ("linear", "pooling", "initialisation", "cache", "remat"),
    "Generation and inspection": ("generation", "inspection", "sites"),
    "Weights of others": ("interop.huggingface",),
    "Data": (
        *("data.tasks.batch", "data.sources.synthetic", "data.baselines", "data.ngrams"),
        "data.tokenizers",
    ),
    "Training": ("training.step", "training.objectives", "training.loop"),
    "Many devices": ("sharding",),
    "Studies": (
        *("studies.design", "studies.study", "studies.ladder", "studies.statistics"),
        *("studies.judging", "studies.referee"),
    ),
}


class BuildFailed(Stop):
    """The site has a broken link, or a page that cannot be built."""


def main(argv: list[str]) -> None:
    """Reads the arguments, writes the generated pages, and builds the site."""
    parser = Parser("build_site", __doc__)
    parser.add_argument("--out", default="site", help="folder for the site (site)")
    arguments = parser.read(argv)
    out = Path(arguments.out).absolute()
    # mkdocs empties the folder that it writes to.
    is_empty = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not is_empty and not ((out / "index.html").is_file() and (out / "search").is_dir()):
        raise InvalidInput(f"--out={arguments.out}: expected a new folder, or an earlier site")
    missing = [n for n in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(n)]
    if missing:
        raise InvalidInput(f"not installed: {', '.join(missing)}: pip install -e '.[site]'")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_sources(place / "docs")
        config = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
        (place / "mkdocs.yml").write_text(_with_pages(config, place / "docs"), encoding="utf-8")
        command = ["mkdocs", "build", "--strict", "--quiet", f"--site-dir={out}"]
        command = [sys.executable, "-m", *command, f"--config-file={place / 'mkdocs.yml'}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailed(f"mkdocs: {(done.stderr or done.stdout).strip()[-1500:]}")
    print(f"{out / 'index.html'}")


def write_sources(docs: Path) -> None:
    """Writes every page as Markdown.

    Args:
      docs: Folder for the pages, which is created.
    """
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("mkdocs.yml"))
    shutil.copy(ROOT / "CHANGELOG.md", docs / "changes.md")
    _write_studies(docs / "studies")
    _write_reference(docs / "reference")


def _write_studies(folder: Path) -> None:
    """Writes an overview, and a page for each study with its figures."""
    folder.mkdir()
    overview = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    overview = overview.replace("../docs/", "../").replace("results/", "")
    (folder / "index.md").write_text(overview.replace("/README.md)", ".md)"), encoding="utf-8")
    for name in studies():
        text = (RESULTS / name / "README.md").read_text(encoding="utf-8")
        for figure in RESULTS.glob(f"{name}/*.svg"):
            text = text.replace(f"]({figure.name})", f"]({name}-{figure.name})")
            shutil.copy(figure, folder / f"{name}-{figure.name}")
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _write_reference(folder: Path) -> None:
    """Writes a page for each part of the package, from the docstrings."""
    folder.mkdir()
    lines = ["# Reference", "", "Functions and modules, from their docstrings.", ""]
    for heading, modules in _REFERENCE.items():
        page = heading.lower().replace(" ", "-") + ".md"
        lines.append(f"- [{heading}]({page}): {', '.join(f'`{name}`' for name in modules)}")
        shown = [f"::: transformer_jax.{name}\n" for name in modules]
        (folder / page).write_text("\n".join([f"# {heading}\n", *shown]), encoding="utf-8")
    (folder / "index.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _with_pages(config: str, docs: Path) -> str:
    """Returns the site's config with the generated pages, and this clone on Python's path."""
    for heading, folder in (("Studies", "studies"), ("Reference", "reference")):
        pages = sorted((docs / folder).glob("*.md"), key=lambda p: (p.stem != "index", p.stem))
        inside = json.dumps([f"{folder}/{page.name}" for page in pages])
        config = config.replace(f"- {heading}: {folder}\n", f"- {heading}: {inside}\n")
    return config.replace("        python:\n", f"        python:\n          paths: ['{ROOT}']\n")


if __name__ == "__main__":
    execute(main)
