"""Experiments on public data: comparing, tuning, reproducing the paper, measuring its theory. None of it is private.

Runs are kept in a store (``store.py``), one line each, and never made twice; ``trials.py`` makes one; ``files.py``
reads the TOML files, those in the folders of this package by their names. On top of these:

* ``methods.py``, ``comparison.py``, ``comparison_report.py``: ``diff2 compare``;
* ``learning_rates.py``, ``grids.py``, ``tuning.py``: the paper's tuning, over grids and learning rates;
* ``reproduction.py``, ``reproduced.py``, shown by ``findings.py`` to ``reproduction_report.py``: ``diff2 reproduce``;
* ``theory.py``, ``scaling_law.py``, ``scaling_report.py``: the exponents of the theorems;
* ``planner_check.py``, ``estimate_errors.py``: what the planner predicts, against what happens.
"""
