"""``rllib example list | get | run``: the example jobs in the checkout, or in the installed wheel."""

from __future__ import annotations

import difflib
import re
import shutil
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated

import typer

from rapo_rllib.cli.terminal import fail, one_line_errors

FOLDER = "tuned_examples"

Name = Annotated[str, typer.Argument(help="As `rllib example list` has it.", show_default=False)]


example_app = typer.Typer(no_args_is_help=True, help="Jobs that come with the package: list them, get one, run one.")


@example_app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_example(context: typer.Context, name: Name) -> None:
    """Train what an example describes; options as of `rllib train file`."""
    context.find_root().command.main(["train", "file", str(_example(name)), *context.args])


@example_app.command("list")
def list_examples(
    filter_: Annotated[str, typer.Option("--filter", "-f", help="Only those with this word in name or description.")] = "",
) -> None:
    """List the examples, a line each."""
    with one_line_errors():
        known = {name: described(path) for name, path in examples().items()}
    width = max(map(len, known), default=0)
    for name, text in known.items():
        if filter_.lower() in f"{name} {text}".lower():
            typer.echo(f"{name:<{width}}  {text}")


@example_app.command("get")
def get_example(
    name: Name,
    to: Annotated[Path | None, typer.Option(help="Write it, and modules that it needs, into this folder.")] = None,
) -> None:
    """Print an example, or write it into a folder."""
    path = _example(name)
    if to is None:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    copies = [(file, to / file.name) for file in files_of(path)]
    if there := [copy for _, copy in copies if copy.exists()]:
        fail(f"{there[0]} is there already: name another folder, or remove it")
    to.mkdir(parents=True, exist_ok=True)
    for file, copy in copies:
        shutil.copyfile(file, copy)
        typer.echo(copy)


def _example(name: str) -> Path:
    """Find the file of an example by its name, given with or without suffix; end the command if there is none."""
    with one_line_errors():
        known = examples()
        stem = name.removesuffix(".yaml").removesuffix(".py")
        if stem not in known:
            near = difflib.get_close_matches(stem, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "see `rllib example list`"
            raise ValueError(f"{name}: no such example: {hint}")
        return known[stem]


def examples_folder() -> Path:
    """Find the folder with the examples.

    Raises:
        ValueError: there is none: the package was installed in a way that leaves out data files.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / FOLDER).is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / FOLDER
    try:
        installed = files("rapo_rllib") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        folder = Path(str(file.locate())).resolve().parent
        if folder.name == FOLDER and folder.is_dir():
            return folder
    raise ValueError(f"this installation has no {FOLDER}: install the wheel, or work in a checkout")


def examples() -> dict[str, Path]:
    """Map names of examples to their files: YAML files, and Python files that define ``config``; other modules are left out."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(examples_folder().glob("*.*")) if path.is_file()}
    is_job = re.compile(r"^config\b.*=", re.MULTILINE)
    return {path.stem: path for path, text in texts.items() if path.suffix == ".yaml" or is_job.search(text)}


def described(path: Path) -> str:
    """Read the first line of an example's description."""
    return path.read_text(encoding="utf-8").partition("\n")[0].strip('# "')


def files_of(path: Path) -> list[Path]:
    """List the file of an example, the modules beside it that it names, and the modules that those name in turn."""
    found = [path]
    for file in found:
        text = file.read_text(encoding="utf-8")
        others = (other for other in sorted(path.parent.glob("*.py")) if other not in found)
        names = r"(?m:^(?:from|import) {0}\b)|(?<![\w/]){0}(?:\.[A-Z]|:\w)"
        found += [other for other in others if re.search(names.format(other.stem), text)]
    return found
