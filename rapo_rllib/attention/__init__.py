"""Attention over packed rows: which tokens of a prefix tree see each other, in the form that a model and a device want.

PackedRow --forward.py--> hidden states, by one of: block_attention.py (SDPA), flex.py (CUDA), a 4-D mask, no sharing
model --probe.py--> which of these it computes rightly
"""
