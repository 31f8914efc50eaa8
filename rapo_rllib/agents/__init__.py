"""Off-policy agents that write what a Step-Trace Buffer is built from. algorithm.md section 4.

questions -> ``agent`` (an engine of our own, or ``endpoint``) -> attempts -> ``journal`` (disk) -> ``build`` (buffer)
"""
