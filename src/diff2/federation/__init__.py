"""The same training over real sites: every owner keeps its records and answers questions with clipped sums.

``RemoteCohort`` is the server's side of the ``Cohort`` protocol, ``Site`` the owner's. Between them pass plain arrays
and numbers over a ``Transport``; ``flare.py`` is the one on NVIDIA FLARE.
"""
