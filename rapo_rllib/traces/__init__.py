"""Files that step traces come from: one reader per format. Flow: file -> ``formats.read`` -> ``buffer/files.py``.

traces       recorded trajectories                  traces/recorded.py (beside this folder)
released     {key, value, reward} of the released code  released.py
chat         transcripts with tool calls            chat.py
traces-steps what ``rllib buffer export`` wrote     exported.py
transcripts  of a training run                      transcripts.py

``pairing.py`` says which call a result belongs to, for the first and the third.
"""
