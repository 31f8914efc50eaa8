"""What code might try, read from ``snippets/*.txt``, each with what it would change outside if it worked.

A snippet begins with a line ``### name | goal | marks``. Goals, and how an escape is seen:

    secret   the text of a file, a variable or a process outside is in the output
    canary   the snippet's own folder outside is not what it was
    arrives  the snippet's name arrives at a listener outside
    victim   a process outside is dead
    says     the snippet itself says ESCAPED: a call that is refused, or something seen that is not its own
    ends     it must be stopped by a limit; its mark ``outcomes`` says how, without one by the time limit
    poison   it must leave nothing for the call after it

``harmless`` snippets also run without a sandbox, where they must succeed. ``seen without namespaces`` marks what
``docs/security.md`` names as not covered where the machine gives no user namespaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# W says where things outside are, NAME is the snippet's own
PRELUDE = """
import ctypes, mmap, os, platform, signal
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def escaped_if(holds):
    if holds: print("ESCAPED")
def call(x86, arm, *arguments):
    escaped_if(libc.syscall(*map(ctypes.c_long, (x86 if X86 else arm, *arguments))) >= 0)
def ignore_signals():
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
"""


class Attack(NamedTuple):
    """One snippet."""

    name: str
    goal: str
    code: str
    harmless: bool
    seen_without_namespaces: bool
    outcomes: tuple[str, ...]  # of those that must end


def _attack(text: str) -> Attack:
    head, _, code = text.partition("\n")
    name, goal, *marks = head.split(" | ")
    outcomes = next((mark.split()[1:] for mark in marks if mark.startswith("outcomes ")), ["timeout"])
    return Attack(name, goal, PRELUDE + code, "harmless" in marks, "seen without namespaces" in marks, tuple(outcomes))


_FILES = sorted(Path(__file__).with_name("snippets").glob("*.txt"))
ATTACKS = [_attack(text) for file in _FILES for text in file.read_text(encoding="utf-8").split("\n### ")[1:]]

AFTER_POISON = """
import json, math, os, random
print(1 + 256, 'a', json.dumps([math.sqrt(4)]), os.path.exists('left'), os.path.exists('../left'))
"""
CLEAN = "257 a [2.0] False False"
