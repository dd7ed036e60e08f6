"""Who answers a question: all clients in this process, together or each by itself."""

from .clients import Client
from .per_client import PerClientCohort
from .pooled import LocalCohort
