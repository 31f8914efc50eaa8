"""Files that step traces come from: one reader per format. Flow: file -> ``formats.read`` -> ``buffer/files.py``.

traces       recorded trajectories                      recorded.py
released     {key, value, reward} of the released code  released.py
chat         transcripts with tool calls                chat.py
traces-steps files of ``rllib buffer export``           exported.py
transcripts  transcripts of a training run              transcripts.py

``pairing.py`` finds the call that a result belongs to, for ``traces`` and ``chat``.
"""
