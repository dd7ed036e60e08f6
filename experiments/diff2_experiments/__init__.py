"""Experiments on public data: comparing, tuning, reproducing the paper, measuring its theory. None of it is private.

Runs are kept in a store (``store.py``), one line each, and never made twice; ``trials.py`` makes one. On top of these:

* ``comparison.py``, ``methods.py``, ``scores.py``: ``diff2 compare``;
* ``grids.py``, ``tuning.py``: the paper's tuning, over grids and learning rates;
* ``reproduction.py``, and what shows it, ``reproduced.py`` to ``report_page.py``: ``diff2 reproduce``;
* ``theory.py``, ``scaling_law.py``: the exponents of the theorems;
* ``planner_check.py``, ``estimate_errors.py``: what the planner forecasts, against what happens.
"""
