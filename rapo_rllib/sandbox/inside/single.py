"""One process that locks itself in and runs code: what the bwrap backend starts, inside the namespaces that bwrap made."""

from __future__ import annotations

import os

from . import modules, runner, zygote
from .jail import STATUS_FD, Jail, Limits
from .settings import take
from .start import set_variables


def main() -> None:
    """Program. It answers as a child of the zygote does."""
    settings = take()
    set_variables()
    files = settings["files"]
    modules.link(modules.FOLDER, files["modules"])
    modules.find_in(modules.FOLDER, files["path"])
    jail = Jail(settings["layers"], [*files["readable"], modules.FOLDER])
    jail.prepare()
    limits = Limits(*settings["limits"])
    zygote.become_child(jail, limits, settings["seed"], settings["fds"], os.getcwd(), 0)
    runner.serve(limits.one_call)
    os.close(STATUS_FD)
