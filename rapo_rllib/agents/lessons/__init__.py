"""Rules that an off-policy agent draws from attempts, right and wrong ones. docs/lessons.md.

attempts on disk -> ``evidence`` (which are shown) -> ``prompt`` -> agent -> ``journal`` (disk) -> lessons in the buffer
"""
