"""The same training over real sites: every site keeps its records and answers questions with clipped sums.

Imports go one way: ``wire`` (messages, requests, transports, and a cohort that asks over them) < ``agreement`` <
``own_noise`` < ``sealed`` < ``server`` < ``site`` < ``from_run_file`` < ``flare``. Only ``flare`` knows NVIDIA FLARE.
"""
