"""The version, in one place that packaging can read without importing PyTorch."""

__version__ = "0.1.0"
