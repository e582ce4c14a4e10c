"""The general family: any row, in double precision, on the CPU.

What     ``solve`` finds the potentials of a row; ``read`` averages a payload under the plan that they give. Both have
         their gradient in every argument, and ordinary autograd around them does everything else. Ranks, sorts,
         payloads and permutations on default targets go from values to the answer in one kernel.
When     float64, a cost other than 2, learned weights or eps, a squash of your own, payloads, ``transport``: calls of
         at most 2,048 values and targets a row that the fast families do not take. See ``kernels.plan.py``.
Why      The torch reference takes several times as long. Measurements stand in ``kernels.plan.py``.
Keeps    Values, and potentials of values and targets in float64: the backward pass computes the plan again.

    costs.py      the cost of pairs, and its slope
    lines.py      one line of the plan: exponents, where they matter, exponentials
    start.py      the potentials of the hard sort, with what entropy does at each boundary between two targets
    laplacian.py  Newton's matrix: edges between targets, eliminated without subtractions
    newton.py     Newton's method on the potentials of the targets
    solve.py      a row solved, and the gradient of its potentials
    plan_again.py the plan that the gradient is made of, as it was read
    read.py       averages and shares, and their gradients
    nodes.py      a few nodes in place of many equal targets, for the squared cost
    autograd.py   the two operations as functions of torch
    places.py     standardised and squashed values, and the gradient of that
    ranks.py      ranks from values to the answer, and their gradient
    twice.py      the second derivatives of ranks in the values
    columns.py    averages over values, and shares, from values to the answer, and their gradient
    whole.py      ranks as a function of torch
    whole_columns.py    averages over values, and shares, as a function of torch
"""
