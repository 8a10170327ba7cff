"""The operator of one layer's Fisher blocks against dense matrices."""

import pytest
import torch
from cases import assert_close, seeded
from solving import dense

from nws.natural import UnitFisher


@pytest.mark.parametrize("shape", [(7, 4, 3), (3, 5, 2), (1, 1, 1), (4, 1, 6), (6, 3, 1)], ids=str)
def test_every_operation_is_that_of_the_dense_blocks(shape: tuple[int, int, int]) -> None:
    n, d, m = shape
    inputs, weights = (torch.rand(n, k, generator=seeded(k), dtype=torch.float64) for k in (d, m))
    fisher = UnitFisher(inputs - 0.5, weights)
    blocks, vectors = dense(fisher), torch.randn(m, d, generator=seeded(9), dtype=torch.float64)
    content = fisher.inputs.clone(), fisher.curvature.clone(), vectors.clone()
    assert fisher.shape == (m, d)
    assert_close(fisher.matmul(vectors), torch.einsum("mij,mj->mi", blocks, vectors))
    assert_close(fisher.diagonal(), torch.stack([block.diagonal() for block in blocks]))
    assert_close(fisher.blocks(), blocks)
    assert_close(fisher.quadratic(vectors), torch.einsum("mi,mij,mj->", vectors, blocks, vectors))
    for units in (slice(0, 1), slice(1, m), slice(0, m, 2), slice(m - 1, None)):
        assert_close(fisher.blocks(units), blocks[units])
    for before, after in zip(content, (fisher.inputs, fisher.curvature, vectors), strict=True):
        assert torch.equal(before, after)  # nothing is written in place
