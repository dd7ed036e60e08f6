"""What is asked of the records, of whose, and how far one of them can move the answer. Nothing here needs PyTorch."""

from .population import Population, Protection
from .question import ALL, DIFFERENCE, GRADIENT, LOCAL, SCALING, Batch, Question, Smoothness
from .round import Cohort, Estimate, Noisy, Round
