"""Find which layers this machine gives, and refuse to run without those that are required."""

from __future__ import annotations

import functools
import json
import subprocess

from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.inside.jail import NAMESPACES, PIDFD, REQUIRED
from rapo_rllib.sandbox.programs import start

_PROBE_S = 30.0
_FIXES = {
    "rlimits": "let the container set resource limits (setrlimit)",
    "landlock": "use a kernel from 5.13 on with Landlock switched on (lsm=landlock,... on its command line), and a container "
    "runtime of 2022 or later, whose seccomp profile allows Landlock",
    "seccomp": "use x86_64 or aarch64 and a kernel with CONFIG_SECCOMP_FILTER",
    NAMESPACES: "allow user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, or the seccomp "
    "profile of the container), or namespaces: auto",
}


@functools.cache
def probe() -> dict[str, str | None]:
    """For each layer why the machine does not give it, or None; found out once per process, by trying.

    Raises:
        ValueError: the interpreter cannot even be started with an empty environment.
    """
    process = start("jail", "probe", visible_files()._asdict(), subprocess.PIPE, subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=_PROBE_S)
        found: dict[str, str | None] = json.loads(output)
    except (subprocess.TimeoutExpired, ValueError) as error:
        process.kill()
        said = b"" if isinstance(error, subprocess.TimeoutExpired) else errors
        raise ValueError(
            "env_config.tools: python: its sandbox cannot be tried out on this machine: "
            f"{said.decode('utf-8', 'replace').strip() or error}"
        ) from None
    return found


def layers_in_force(namespaces: str, allow_weak: bool) -> tuple[str, ...]:
    """The layers that the forkserver's processes will have here.

    Args:
        namespaces: ``auto`` (where allowed), ``required`` or ``off``.
        allow_weak: do without required layers that the machine does not give.

    Raises:
        ValueError: a required layer, or what processes are ended by, is missing; it says which, why, and what helps.
    """
    found = probe()
    if found[PIDFD] is not None:
        raise ValueError(
            f"env_config.tools: python: this machine does not give {PIDFD} ({found[PIDFD]}), by which the sandbox ends its "
            "processes: use a kernel from 5.3 on, and a container whose seccomp profile allows it"
        )
    needed = (*REQUIRED, NAMESPACES) if namespaces == "required" else REQUIRED
    for layer in () if allow_weak else needed:
        if found[layer] is not None:
            raise ValueError(
                f"env_config.tools: python: this machine does not give the layer {layer!r} ({found[layer]}): {_FIXES[layer]}; "
                "or set allow_weak_sandbox: true to run model-written code without that layer"
            )
    wanted = REQUIRED if namespaces == "off" else (*REQUIRED, NAMESPACES)
    return tuple(layer for layer in wanted if found[layer] is None)
