"""``rllib report``: what trial folders hold, as one self-contained HTML page.

    trial folders --runs--> Trial --curves, comparison, trajectories--> plain data --page--> one HTML file

``rapo_rllib.report.page.write_report`` is the entry.
"""
