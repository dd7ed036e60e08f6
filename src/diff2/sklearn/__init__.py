"""Private models with the interface of scikit-learn (extra ``sklearn``).

>>> import numpy as np
>>> x = np.random.default_rng(1).random((2000, 1))
>>> model = PrivateClassifier(epsilon=1.0, bounds=(0, 1), classes=[0, 1]).fit(x, x[:, 0] > 0.5)
>>> model.predict([[0.05], [0.95]])
array([0, 1])
>>> model.guarantee_.private, model.epsilon_ <= 1
(True, True)

Cross-validation and grid search fit many times: from the second fit of a process on the same records, a warning says
what all of them cost together. A step of a pipeline that learns from the records, such as a scaler, is not private;
none is needed, for a fit standardises its inputs privately.
"""

try:
    import sklearn as sklearn
except ImportError:
    raise ImportError("diff2.sklearn needs scikit-learn; install it: pip install 'diff2[sklearn]'") from None

from .estimators import PrivateClassifier, PrivateRegressor
