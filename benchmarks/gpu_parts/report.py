"""All figures of ``benchmarks/gpu.py`` as one table."""

from __future__ import annotations

from typing import Any

from gpu_parts.job import flat


def print_table(found: dict[str, Any]) -> None:
    """A line for each figure, both measurements beside each other."""
    for part, figures in found.items():
        print(f"\n{part}")
        for name, value in flat(figures).items():
            print(f"    {name:<100} {shown(value)}")


def shown(value: Any) -> str:
    """Three digits of a number; of both of two.

    Example: ``[1234.5, 1250]`` becomes ``1.23e+03, 1.25e+03``.
    """
    if isinstance(value, list):
        return ", ".join(shown(one) for one in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
