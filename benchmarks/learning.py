"""Make the tables and figures of the learning studies out of their raw results.

    python benchmarks/learning.py     benchmarks/results/summary.json, and the tables of the pages

What was run, and how it is judged, is in ``benchmarks/learning_plan.md`` and ``benchmarks/equal_traces_plan.md``. They name the
commit that has the code of the runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from learning_parts.every_figure import all_figures
from learning_parts.plots import curves
from learning_parts.results import RESULTS, read
from learning_parts.tables import PAGE, PAGES, figures, tables, written_into


def main() -> None:
    """Make the summary and the tables of the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="raw results, and what is made of them")
    results = parser.parse_args().results
    found = all_figures(results)
    (results / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for page in PAGES:
        page.write_text(written_into(page.read_text(encoding="utf-8"), tables(found), figures(found)), encoding="utf-8")
    curves(read(results), PAGE.with_name("learning_chains.png"))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
