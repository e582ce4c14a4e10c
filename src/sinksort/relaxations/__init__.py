"""The other relaxations of sorting and ranking behind one signature, so that anyone can compare.

==================  =============================================  ============  =======================
method              paper                                          ``strength``  has
==================  =============================================  ============  =======================
``transport``       Cuturi, Teboul, Vert 2019 (this library)       eps           rank, sort, permutation
``neuralsort``      Grover, Wang, Zweig, Ermon 2019                tau           rank, sort, permutation
``softsort``        Prillo, Eisenschlos 2020                       tau           rank, sort, permutation
``pairwise``        Qin, Liu, Li 2010                              tau           rank
``gaussian``        Taylor, Guiver, Robertson, Minka 2008          sigma         rank, sort, permutation
``permutahedron``   Blondel, Teboul, Berthet, Djolonga 2020        eps           rank, sort
``odd_even``        Petersen, Borgelt, Kuehne, Deussen 2021        1 / beta      rank, sort, permutation
``bitonic``         the same                                       1 / beta      rank, sort, permutation
==================  =============================================  ============  =======================

Beside them stands ``smooth_topk_svm_loss`` (Berrada, Zisserman, Kumar 2018), a smooth top-k loss without a soft sort.

All relaxations compute in float64 inside, like the operators, and return the dtype of x.
"""

from .api import METHODS, permutation, rank, sort
from .base import OPERATIONS, Relaxation
from .gaussian import Gaussian
from .networks import SortingNetwork
from .neuralsort import NeuralSort
from .pairwise import Pairwise
from .permutahedron import Permutahedron
from .softsort import SoftSort
from .topk_svm import smooth_topk_svm_loss
from .transport import Transport

__all__ = [
    "METHODS",
    "OPERATIONS",
    "Gaussian",
    "NeuralSort",
    "Pairwise",
    "Permutahedron",
    "Relaxation",
    "SoftSort",
    "SortingNetwork",
    "Transport",
    "permutation",
    "rank",
    "smooth_topk_svm_loss",
    "sort",
]
