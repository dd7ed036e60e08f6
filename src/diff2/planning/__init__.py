"""Noise and error before there is any data. Nothing here needs PyTorch."""

from .plan import Plan, plan
