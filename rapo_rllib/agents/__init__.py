"""Off-policy agents; a Step-Trace Buffer is built from their attempts. algorithm.md section 4.

questions -> ``agent`` (an engine of our own, or ``endpoint``) -> attempts -> ``journal`` (disk) -> ``build`` (buffer)
"""
