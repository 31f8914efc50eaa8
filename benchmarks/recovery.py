"""Seconds to recovery: the drills of ``tests/e2e/test_cluster_drills.py``, and what each of them records.

    python benchmarks/recovery.py --json recovery.json
    python benchmarks/recovery.py --only comes_back

In a cluster of two raylets on this machine, with a tiny model, a learner or a node is killed; a disk is full while a checkpoint
is written; a Milvus server is gone for ten seconds. Most of the seconds are starts of processes, on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DRILLS = "tests/e2e/test_cluster_drills.py"


def drilled(only: str | None) -> tuple[int, dict[str, dict[str, float]]]:
    """Run the drills, or those with ``only`` in their names; returns pytest's status, and the seconds of each by its name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        chosen = ["-k", only] if only else []
        options = ["-q", "-p", "no:cacheprovider", "-m", "slow", f"--junitxml={report}"]
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "pytest", *options, *chosen, DRILLS]
        status = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path}).returncode
        cases = ElementTree.parse(report).iter("testcase")
        return status, {case.attrib["name"]: _recorded(case) for case in cases}


def _recorded(case: ElementTree.Element) -> dict[str, float]:
    return {each.attrib["name"]: float(each.attrib["value"]) for each in case.iter("property")}


def main() -> int:
    """Run them; exit status 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="part of the name of a drill")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    status, found = drilled(options.only)
    for name, seconds in found.items():
        for what, value in seconds.items() or [("nothing recorded", float("nan"))]:
            print(f"{name.removeprefix('test_'):70} {what:40} {value:8.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps({name: seconds for name, seconds in found.items() if seconds}, indent=2) + "\n")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
