"""Off-policy agents that write what a Step-Trace Buffer is built from. algorithm.md section 4.

questions -> agent (``vllm_agent``, ``endpoint_agent``) -> attempts -> ``journal`` (disk) -> ``build`` (buffer)
"""
