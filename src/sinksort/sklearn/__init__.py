"""scikit-learn estimators whose losses are soft quantiles, soft trimmed means and soft ranks.

``LeastQuantileRegressor`` and ``LeastTrimmedRegressor`` fit what most of the data says, whatever the rest says;
``SoftTopKClassifier`` minimises the top-k error. They work in pipelines, grid search, cloning and pickling; fitting
runs in torch (on a GPU when there is one), predictions are plain NumPy. There is no ``sample_weight``: repeat rows.
"""

try:
    from sklearn.utils.validation import validate_data as _validate_data  # noqa: F401
except ImportError as error:
    raise ImportError(
        "sinksort.sklearn needs scikit-learn 1.6 or newer, which is not installed; "
        "install it with: pip install 'sinksort[sklearn]'"
    ) from error

from .classifier import SoftTopKClassifier
from .regressors import LeastQuantileRegressor, LeastTrimmedRegressor

__all__ = ["LeastQuantileRegressor", "LeastTrimmedRegressor", "SoftTopKClassifier"]
