"""The Step-Trace Buffer: off-policy steps, found by the history they followed.

``build.ensure_built`` fills a ``store.StepTraceBuffer`` on first use; its ``retrieve`` finds traces, ``rows.select`` picks one.
"""
