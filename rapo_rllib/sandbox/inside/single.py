"""One process that locks itself in and runs code: what the bwrap backend starts, inside the namespaces that bwrap made."""

from __future__ import annotations

import json
import os
import sys

from . import runner, zygote
from .jail import STATUS_FD, Jail, Limits
from .start import set_variables


def main() -> None:
    """Program; its only argument holds the settings as JSON. It answers as a child of the zygote does."""
    settings = json.loads(sys.argv[1])
    set_variables()
    sys.path.extend(settings["packages"])
    jail = Jail(settings["layers"], settings["readable"])
    jail.prepare()
    limits = Limits(*settings["limits"])
    zygote.become_child(jail, limits, settings["seed"], settings["fds"], os.getcwd(), 0)
    runner.serve(limits.one_call)
    os.close(STATUS_FD)
