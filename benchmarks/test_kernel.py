"""The kernel by itself, against NumPy's float32 matrix product on as many threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from spdnn.engines.cpu.calibrate import measured_costs
from spdnn.engines.cpu.columns import aligned_empty
from spdnn.engines.cpu.kernels import tile as kernels
from spdnn.engines.cpu.kernels.barrier import thread_group
from spdnn.engines.cpu.sizes import DEFAULT_SIZES
from spdnn.machine.threads import default_threads
from spdnn.network import Layer, Network
from spdnn.plan.cpu.plan import plan_edges

NEURONS, DEGREE, LAYERS, REPEATS = 1024, 32, 8, 60
GEMM_SIDE = 4096


def random_layer(rng: np.random.Generator, outputs_sharing: int) -> Layer:
    """Random weights; every `outputs_sharing` outputs have the same random inputs."""
    groups = NEURONS // outputs_sharing
    inputs = np.stack([rng.choice(NEURONS, DEGREE, replace=False) for _ in range(groups)])
    inputs = np.repeat(inputs, outputs_sharing, axis=0)
    columns = rng.permutation(NEURONS).repeat(DEGREE)
    weights = rng.uniform(0.01, 2 / DEGREE, columns.size)
    shape = (NEURONS, NEURONS)
    return Layer(sp.coo_array((weights, (inputs.reshape(-1), columns)), shape=shape), -0.01, 32.0)


@pytest.mark.parametrize("threads", sorted({1, default_threads()}))
@pytest.mark.parametrize(("outputs_sharing", "goal"), [(16, 0.72), (1, 0.35)])
def test_multiply_adds_a_second(threads, outputs_sharing, goal, pair, report):
    rng = np.random.default_rng(0)
    network = Network([random_layer(rng, outputs_sharing) for _ in range(LAYERS)])
    plan = plan_edges(network, measured_costs())
    width = DEFAULT_SIZES.tile_width(plan)
    tiles = []
    for _ in range(threads):
        tile, spare = (aligned_empty(NEURONS * width + 16) for _ in range(2))
        tile[:] = rng.random(tile.size)
        tiles.append((tile, spare))

    def run_tile(buffers):
        counts = kernels.empty_counts(LAYERS)
        room = kernels.Room(*buffers, kernels.live_words(1, width), counts)
        (alone,) = thread_group(1)
        ids, ones = np.arange(width), np.ones(width, dtype=np.int64)
        for _ in range(REPEATS):
            kernels.run_steps(plan.arrays, 0, LAYERS, room, width, ids, ones, 0, alone)
        assert (counts[kernels.DISTINCT] == width).all()

    matrix = rng.random((GEMM_SIDE, GEMM_SIDE), dtype=np.float32)
    with ThreadPoolExecutor(threads) as pool, threadpool_limits(threads):
        ours = lambda: list(pool.map(run_tile, tiles))  # noqa: E731
        theirs = lambda: matrix @ matrix  # noqa: E731
        ours(), theirs()
        pair.time(ours, theirs)
    multiply_adds = network.n_edges * width * REPEATS * threads
    ratio = pair.speedup * multiply_adds / GEMM_SIDE**3
    what = f"{outputs_sharing} outputs share inputs, {threads} thread(s): of NumPy's sgemm"
    report(what, f"{ratio:.2f}", f"{goal}")
