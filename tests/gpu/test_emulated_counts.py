"""What launches cost by counts: kernels whose cost is known, and one of the engine's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spdnn import DeviceError
from spdnn.engines.cuda.emulated import counting
from spdnn.engines.cuda.emulated.counts import CountedDevice, Counts
from spdnn.engines.cuda.emulated.liveness import regions, taken_together
from spdnn.engines.cuda.emulated.ptx import Kernel, Label, parse
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.recipes.radixnet import official_network
from tests.gpu.makers import assert_as_reference
from tests.makers import dyadic_features

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")

cuda, float32, int64, uint32 = gpu.cuda, gpu.float32, gpu.int64, gpu.uint32
ALIGNED, WARP = gpu.ALIGNED, gpu.WARP


def counts_of(
    function: Callable[..., None],
    *arrays: Any,
    n_blocks: int = 1,
    n_threads: int = WARP,
    sample: int | None = None,
) -> Counts:
    """Launch a kernel on the counting device, and give what the launch cost."""
    device = CountedDevice(sample=sample)
    given = []
    for array in arrays:
        given.append(device.empty(array.shape, array.dtype))
        device.write(given[-1], array)
    device.launch(gpu.kernel(function), (n_blocks,), n_threads, tuple(given))
    return device.launches[0].counts


def floats(count: int) -> Any:
    """Some numbers."""
    return np.arange(count, dtype=np.float32)


def stored_with(place_of: Callable[[Any], Any]) -> Counts:
    """A warp stores to shared memory and loads from it, each lane in its place."""
    place_of = gpu.inlined(place_of)

    def kernel(out: Any) -> None:
        memory = cuda.shared.array(2048, float32)
        lane = uint32(cuda.threadIdx.x)
        memory[place_of(lane)] = float32(lane)
        cuda.syncthreads()
        out[lane] = memory[place_of(lane)]

    return counts_of(kernel, floats(WARP))


@pytest.mark.parametrize(
    ("place_of", "wavefronts", "ideal"),
    [
        (lambda lane: lane, 1, 1),
        (lambda lane: 31 - lane, 1, 1),
        (lambda lane: 2 * lane, 2, 1),
        (lambda lane: 33 * lane, 1, 1),
        (lambda lane: 32 * lane, 32, 1),
        (lambda lane: 20 * (lane // 4) + lane % 4, 1, 1),
        (lambda lane: 320 * (lane % 8 // 2) + lane // 8, 4, 1),
        (lambda lane: lane // 32, 1, 1),  # all lanes in one word
        (lambda lane: lane % 2 * 32, 2, 1),  # two words of one bank
    ],
)
def test_words_of_a_bank_follow_one_another(
    place_of: Callable[[Any], Any], wavefronts: int, ideal: int
) -> None:
    counts = stored_with(place_of)
    assert (counts.shared_loads, counts.shared_stores) == (1, 1)
    assert (counts.shared_load_wavefronts, counts.shared_load_ideal) == (wavefronts, ideal)
    assert (counts.shared_store_wavefronts, counts.shared_store_ideal) == (wavefronts, ideal)
    assert counts.barriers == 1


@pytest.mark.parametrize(
    ("stride", "wavefronts", "ideal"),
    [
        (4, 4, 4),  # quarters of the warp, each of all banks
        (20, 4, 4),
        (8, 8, 4),
        (32, 32, 4),
        (0, 4, 4),  # each quarter asks for the same four words
    ],
)
def test_four_numbers_at_once_are_loaded_by_quarters_of_a_warp(
    stride: int, wavefronts: int, ideal: int
) -> None:
    def kernel(out: Any) -> None:
        memory = cuda.shared.array(1028, float32, ALIGNED)
        lane = uint32(cuda.threadIdx.x)
        for place in range(lane, 1028, WARP):
            memory[uint32(place)] = float32(place)
        cuda.syncthreads()
        start = lane * uint32(stride)
        total = float32(0)
        for v in range(4):
            total += memory[start + uint32(v)]
        out[lane] = total

    counts = counts_of(kernel, floats(WARP))
    assert counts.shared_loads == 1
    assert (counts.shared_load_wavefronts, counts.shared_load_ideal) == (wavefronts, ideal)
    assert counts.shared_stores == counts.shared_store_wavefronts == 33


def test_eight_bytes_at_once_are_loaded_by_halves_of_a_warp() -> None:
    def kernel(out: Any) -> None:
        memory = cuda.shared.array(64, int64)
        lane = uint32(cuda.threadIdx.x)
        memory[uint32(lane * uint32(2))] = lane
        cuda.syncthreads()
        out[lane] = memory[lane // uint32(16) * uint32(16)]

    counts = counts_of(kernel, np.zeros(WARP, np.int64))
    assert (counts.shared_store_wavefronts, counts.shared_store_ideal) == (4, 2)
    assert (counts.shared_load_wavefronts, counts.shared_load_ideal) == (2, 2)


@pytest.mark.parametrize(
    ("stride", "sectors", "wavefronts"), [(1, 4, 1), (2, 8, 1), (8, 32, 2), (32, 32, 8), (0, 1, 1)]
)
def test_sectors_are_those_that_a_warp_touches(stride: int, sectors: int, wavefronts: int) -> None:
    def kernel(source: Any, target: Any) -> None:
        lane = uint32(cuda.threadIdx.x)
        target[uint32(lane * uint32(stride))] = source[uint32(lane * uint32(stride))]

    counts = counts_of(kernel, floats(1024), floats(1024))
    assert (counts.global_loads, counts.global_stores, counts.atomics) == (1, 1, 0)
    assert (counts.global_load_bytes, counts.global_store_bytes) == (128, 128)
    assert counts.global_load_sectors == counts.global_store_sectors == sectors
    assert counts.global_load_wavefronts == counts.global_store_wavefronts == wavefronts
    assert counts.new_sectors == sectors


def test_a_sector_is_new_to_a_block_only_once() -> None:
    def kernel(source: Any, target: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        total = source[thread]
        cuda.syncthreads()
        target[uint32(cuda.blockIdx.x * 64 + thread)] = total + source[thread // uint32(2)]

    counts = counts_of(kernel, floats(64), floats(128), n_blocks=2, n_threads=64)
    assert counts.global_load_sectors == 2 * (8 + 4)
    assert counts.new_sectors == 2 * 8


def test_atomic_operations_are_counted_apart() -> None:
    def kernel(target: Any) -> None:
        cuda.atomic.add(target, cuda.threadIdx.x // 16 * 64, 1)

    counts = counts_of(kernel, np.zeros(128, np.int32))
    assert (counts.atomics, counts.atomic_bytes, counts.atomic_sectors) == (1, 128, 2)
    assert (counts.global_loads, counts.global_stores) == (0, 0)


def test_a_warp_pays_for_both_sides_of_a_branch_and_for_its_longest_lane() -> None:
    def kernel(source: Any, target: Any) -> None:
        thread = cuda.threadIdx.x
        total = source[thread]
        for _ in range(thread % 8):
            total = total * total + float32(1)
        target[thread] = total

    counts = counts_of(kernel, floats(64), floats(64), n_threads=64)
    assert counts.warp_multiply_adds == 2 * 7
    assert counts.multiply_adds == 64 // 8 * 28
    longer = counts_of(kernel, floats(256), floats(256), n_threads=256)
    assert longer.warp_instructions == 4 * counts.warp_instructions


def test_accesses_of_lanes_in_a_branch_are_those_of_fewer_lanes() -> None:
    def kernel(source: Any, target: Any) -> None:
        lane = uint32(cuda.threadIdx.x)
        if lane % uint32(2) == uint32(0):
            target[lane] = source[uint32(lane * uint32(8))]
        else:
            target[uint32(lane + uint32(64))] = source[lane]

    counts = counts_of(kernel, floats(512), floats(512))
    assert (counts.global_loads, counts.global_stores) == (2, 2)
    assert counts.global_load_bytes == 2 * 16 * 4
    assert counts.global_load_sectors == 16 + 4


def some_blocks_work(source: Any, target: Any) -> None:
    """Work in every second block, with two barriers."""
    if cuda.blockIdx.x % 2 == 1:
        return
    cuda.syncthreads()
    value = source[cuda.threadIdx.x]
    cuda.syncthreads()
    target[cuda.blockIdx.x * WARP + cuda.threadIdx.x] = value


def test_blocks_that_return_at_once_are_told_from_those_that_work() -> None:
    counts = counts_of(some_blocks_work, floats(WARP), floats(8 * WARP), n_blocks=8)
    assert (counts.blocks, counts.returned, counts.working) == (8, 4, 4)
    assert counts.barriers == 2 * 4


def test_a_sample_of_blocks_stands_for_all_and_all_are_run() -> None:
    def kernel(target: Any) -> None:
        target[cuda.blockIdx.x * WARP + cuda.threadIdx.x] = 1.0

    device = CountedDevice(sample=5)
    target = device.empty(40 * WARP, np.float32)
    device.launch(gpu.kernel(kernel), (40,), WARP, (target,))
    (launch,) = device.launches
    assert (launch.kernel, launch.n_blocks) == ("kernel", 40)
    assert (launch.sampled.blocks, launch.sampled.global_store_sectors) == (5, 20)
    assert (launch.counts.blocks, launch.counts.global_store_sectors) == (40, 160)
    assert (device.read(target) == 1).all()


def test_what_cannot_be_noted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(source: Any, target: Any) -> None:
        total = float32(0)
        for place in range(source.size):
            total += source[place]
        target[cuda.threadIdx.x] = total

    n_noted = counting.LOG_ROWS // WARP
    counts_of(many, floats(1000), floats(WARP))
    with pytest.raises(DeviceError, match="kernel many: more accesses between two barriers"):
        counts_of(many, floats(n_noted + 1), floats(WARP))


def test_the_host_is_counted_too() -> None:
    device = CountedDevice()
    array = device.empty(10, np.int64)
    device.write(array, np.arange(10))
    device.fill_bytes(array, 0)
    device.read(array, 3)
    device.wait()
    host = device.host
    assert (host.waits, host.reads, host.writes, host.fills) == (2, 1, 1, 1)
    assert (host.written_bytes, host.read_bytes) == (80, 24)


def test_regions_end_at_branches_barriers_and_labels() -> None:
    def kernel(target: Any) -> None:
        if cuda.threadIdx.x < 8:
            target[cuda.threadIdx.x] = 1.0
        cuda.syncthreads()
        target[cuda.threadIdx.x] = 2.0

    code = parsed(kernel)
    found = regions(code)
    assert [end for _, end in found][:-1] == sorted(end for _, end in found)[:-1]
    covered = [place for first, end in found for place in range(first, end)]
    assert covered == [n for n, each in enumerate(code.code) if not isinstance(each, Label)]


def parsed(function: Callable[..., None]) -> Kernel:
    """The instructions of a kernel of one array."""
    array = gpu.float32[::1]
    return parse(gpu.compile_ptx(function, (array,), (9, 0)), function.__name__)


_PTX = """
.entry f (.param .u64 a) {{
  .reg .f32 %f<9>;
  .reg .b64 %rd<3>;
  .shared .align 16 .b8 m[64];
  mov.u64 %rd1, m;
{}
  ret;
}}
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["ld.shared.f32 %f{n}, [%rd1+{at}]"] * 4, [4, 0, 0, 0]),
        (["ld.shared.f32 %f{n}, [%rd1+{at}]"] * 3, [2, 0, 1]),
        (["st.shared.f32 [%rd1+{at}], %f{n}"] * 2, [2, 0]),
        # A store may be to the same place; behind a barrier, or of a new base, it is another one.
        (["ld.shared.f32 %f{n}, [%rd1+{at}]", "st.shared.f32 [%rd2], %f1"] * 2, [1, 1, 1, 1]),
        (["ld.shared.f32 %f{n}, [%rd1+{at}]", "bar.sync 0"] * 2, [1, 1, 1, 1]),
        (["ld.shared.f32 %f{n}, [%rd1+{at}]", "add.s64 %rd1, %rd1, 4"] * 2, [1, 1, 1, 1]),
        (["ld.global.f32 %f{n}, [%rd1+{at}]"] * 4, [1, 1, 1, 1]),
        (["ld.shared.v4.f32 {{%f1,%f2,%f3,%f4}}, [%rd1+{at}]"] * 2, [1, 1]),
    ],
)
def test_neighbouring_words_of_shared_memory_are_one_access(
    lines: list[str], expected: list[int]
) -> None:
    loads = sum("{at}" in line for line in lines)
    step = len(lines) // loads
    text = ";\n".join(
        line.format(n=number, at=4 * (number // step)) for number, line in enumerate(lines)
    )
    kernel = parse(_PTX.format(text + ";"), "f")
    together = taken_together(kernel)
    assert [together.get(1 + number, 1) for number in range(len(lines))] == expected


def test_the_first_layer_of_an_official_network_costs_what_it_must() -> None:
    """The resident kernel: 1024 neurons, 32 inputs each, 32 features in two thread blocks."""
    network = official_network(1024, 1, bias=-0.25)
    features = dyadic_features(1, 32, 1024, "random")
    device = CountedDevice()
    device.n_multiprocessors = 1
    engine = CudaEngine(device=device)
    plan = engine.plan(network, "edges")
    output = engine.run(plan, engine.load(plan, features), activations=True)
    assert_as_reference(output, network, features, "edges")
    launches = {launch.kernel: launch for launch in device.launches}
    launch = launches["resident 16, groups"]
    counts = launch.counts
    assert launch.grid == (2,)
    # 64 groups of 16 outputs, each in four lanes with 8 outputs and 8 of 16 features; and the
    # activations' own adds.
    of_edges = 2 * 1024 * 32 * 16
    assert counts.multiply_adds == of_edges + 2 * 1024 * 16
    assert counts.warp_multiply_adds == counts.multiply_adds / WARP
    # Inputs of 64 groups for 16 features, by warps of eight groups: 16 bytes a lane.
    assert counts.shared_load_ideal >= 2 * 8 * 32
    # Each weight once.
    assert counts.new_sectors >= 2 * 1024 * 32 * 4 / 32
    assert counts.barriers == 2 * 2
    # The tile is filled with zeros, and then the values are stored.
    loading = launches["load values without sums"].counts
    assert loading.global_store_sectors >= 32 * 1024 * 4 / 32
    assert loading.atomics == 0
