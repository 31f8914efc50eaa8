"""Programs of the sandbox's own processes: the standard library only, and nothing else of ``rapo_rllib``.

Imported twice: as ``inside`` by those processes, which know no other package, and as part of ``rapo_rllib`` by the side that
starts them. Hence relative imports only.
"""
