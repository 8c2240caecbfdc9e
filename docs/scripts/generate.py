"""Make the generated parts of the documentation, or check that they are up to date.

    python docs/scripts/generate.py            # floors, images, heat map, frame of the published runs, and the
                                               # generated regions of all pages
    python docs/scripts/generate.py --check    # change nothing; print stale files and exit with 1 if there are any
    python docs/scripts/generate.py --check --regions

The times in ``docs/tasks/throughput.txt`` are measured, so the file is made by hand; its first line is the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import model_pages
import papers
import published
import reproduce
import scores
import task_examples
import task_pages
from PIL import Image
from regions import Renderer, filled

DOCS = Path(__file__).parents[1]
HEAT_MAP = DOCS / "heat_map.svg"
RENDERERS: dict[str, Renderer] = {
    "gallery": task_pages.gallery,
    "groups": task_pages.groups,
    "fingerprint": task_pages.fingerprint,
    "sample": task_pages.sample,
    "task": task_pages.task,
    "models": model_pages.table_of_models,
    "families": model_pages.families,
    "papers": papers.list_of_papers,
    "model": model_pages.model,
    "common": model_pages.common,
    "shared": model_pages.shared,
    "budget": model_pages.budget,
    "reproduce": reproduce.commands,
    "columns": published.columns,
    "runs": published.runs,
    "suites": published.suites,
    "leaderboard": published.leaderboard,
    "lengths": published.lengths,
    "measurements": published.measurements,
    "rates": published.rates,
    "seeds": published.seeds,
    "solvers": scores.solvers,
    "solved": scores.solved,
    "short-memory": scores.short_memory,
    "tests": scores.tests,
}


def pages() -> list[Path]:
    """Return all pages that may have generated regions."""
    root = DOCS.parent
    return [root / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((root / "results").rglob("*.md"))]


def stale(*, regions_only: bool, write: bool) -> Iterator[Path]:
    """Yield the files that are out of date; with ``write``, make them again."""
    if not regions_only:
        yield from _measured(write)
    for page in pages():
        made = filled(page, RENDERERS)
        if made != page.read_text():
            if write:
                page.write_text(made)
            yield page


def _measured(write: bool) -> Iterator[Path]:
    for path, text in ((task_examples.FLOORS, task_examples.baselines()), (HEAT_MAP, scores.heat_map())):
        if not path.exists() or text != path.read_text():
            if write:
                path.write_text(text)
            yield path
    if not published.frame_is_fresh(write=write):
        yield published.FRAME
    for path, picture in task_examples.pictures().items():
        if not path.exists() or not task_examples.same_picture(Image.open(path), picture):
            if write:
                path.parent.mkdir(exist_ok=True)
                picture.save(path, optimize=True)
            yield path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is stale")
    parser.add_argument("--regions", action="store_true", help="leave floors, images and heat map as they are")
    arguments = parser.parse_args()
    found = list(stale(regions_only=arguments.regions, write=not arguments.check))
    for path in found:
        print(f"{'stale' if arguments.check else 'wrote'}: {path.relative_to(DOCS.parent)}")
    if arguments.check and found:
        print("run: python docs/scripts/generate.py", file=sys.stderr)
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
