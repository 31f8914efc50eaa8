"""``pytest --minutes N``: no test begins after N minutes; the others are skipped and counted."""

from __future__ import annotations

import time

import pytest

OUT_OF_TIME = "no time was left to run it"
BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="no test begins later than this; what is left is skipped and counted")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("minutes")
    if minutes is not None and time.monotonic() - BEGAN >= 60 * minutes:
        pytest.skip(OUT_OF_TIME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left = sum(OUT_OF_TIME in str(report.longrepr) for report in skipped)
    if left:
        terminalreporter.write_line(f"{left} tests were not run: the time was used up", yellow=True)
