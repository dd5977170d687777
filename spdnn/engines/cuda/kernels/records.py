"""What kernels take: records of arrays, one argument for what belongs together.

On the host their fields are `spdnn.engines.cuda.device.DeviceArray`; a launch turns them into the
arrays that kernels see. Numbers stay numbers.
"""

from typing import Any, NamedTuple


class Tiles(NamedTuple):
    """Activations before and after a step.

    Activations lie in tiles: the 32 features of a tile lie together for each neuron, and the
    neurons of a tile follow each other.

    Attributes
    ----------
    y, out : array, float32
        Activations before and after the step. Feature f of the step is number ``live[f]`` of `y`
        and number f of `out`.
    live : array, int32
        Where each feature stands in `y`.
    n_live : array, shape (1,), int32
        Features of the step.
    flags : array, int32
        Set to 1 for features that have an activation that is not zero.
    """

    y: Any
    out: Any
    live: Any
    n_live: Any
    flags: Any


class StepTables(NamedTuple):
    """What all kernels of the layers read of a plan.

    Attributes
    ----------
    steps, caps, bias : array
        See `spdnn.plan.cuda.plan.CudaArrays`.
    origins : array, shape (5,), int64
        Where what the device holds begins in each of the long arrays.
    """

    steps: Any
    caps: Any
    bias: Any
    origins: Any


class StepFacts(NamedTuple):
    """What the resident kernel reads of a row of the step table, as whole numbers of 32 bits.

    Attributes
    ----------
    first_bundle, end_bundle, first_ell, end_ell : int32
        The bundles and ELL blocks of the step.
    bias_start, layer, is_relu, tests, may_drop : int32
        See `spdnn.plan.steps`.
    cap : float32
        Largest activation.
    """

    first_bundle: Any
    end_bundle: Any
    first_ell: Any
    end_ell: Any
    bias_start: Any
    layer: Any
    is_relu: Any
    tests: Any
    may_drop: Any
    cap: Any


class Groups(NamedTuple):
    """The groups of a plan; see `spdnn.plan.cuda.bundles.Bundles`.

    Attributes
    ----------
    bundles, groups : array, int64
        Tables of bundles and groups.
    inputs : array, int32
        Inputs of groups.
    weights : array, float32
        Weights of groups. They begin at a multiple of 16 bytes.
    """

    bundles: Any
    groups: Any
    inputs: Any
    weights: Any


class EllBlocks(NamedTuple):
    """The ELL blocks of a plan; see `spdnn.plan.cuda.ell.Ell`.

    Attributes
    ----------
    blocks, stages, slices : array, int64
        Tables of blocks, stages and slices.
    maps : array, int32
        Inputs that stages hold.
    indices : array, uint16
        Places in the buffer.
    weights : array, float32
        Weights of the entries.
    """

    blocks: Any
    stages: Any
    slices: Any
    maps: Any
    indices: Any
    weights: Any


class ChunkSums(NamedTuple):
    """The chunks of long outputs, and where their partial sums meet.

    Attributes
    ----------
    table : array, shape (n_chunks, 4), int64
        See `spdnn.plan.chunks.Chunks`.
    partial : array, shape (n_minibatches, n_chunks, minibatch), float32
        Room for the partial sums of a step's chunks.
    arrived : array, shape (n_minibatches, n_chunks), int32
        How many chunks of an output are done, in the place of its first one; zero between launches.
    """

    table: Any
    partial: Any
    arrived: Any


class FeatureList(NamedTuple):
    """The features that are carried, in their order.

    Attributes
    ----------
    live : array, int32
        Where each stands in the activations.
    n_live : array, shape (1,), int32
        How many there are.
    ids : array, int64
        The number of each among all features of the run.
    stands_for : array, int64
        How many features each stands for: itself, and those that were equal to it.
    """

    live: Any
    n_live: Any
    ids: Any
    stands_for: Any


class Rows(NamedTuple):
    """Inputs in index form.

    Attributes
    ----------
    indptr, indices, values : array
        The features' inputs, row by row; see `spdnn.features.Features`.
    position : array, whole numbers
        The loaded neuron to which each input is added.
    """

    indptr: Any
    indices: Any
    values: Any
    position: Any


class Span(NamedTuple):
    """The steps of one launch of the resident kernel.

    Attributes
    ----------
    first_step, end_step : int
        The first step, and the end of them (excluded).
    n_first : int
        Neurons before the first step.
    n_rows : int
        Rows of shared memory for the neurons before any step, and for those after it.
    """

    first_step: int
    end_step: int
    n_first: int
    n_rows: int


class HashTable(NamedTuple):
    """A table of open addressing, in which equal features find each other.

    Attributes
    ----------
    codes : array, uint64
        The hash of each feature.
    table : array, uint64
        Codes, in a power of two of slots: more than twice as many as there are features.
    first : array, int32
        The smallest number of a feature with the code of each slot; larger than any before.
    slot_of : array, uint64
        The slot of each feature.
    differs : array, int32
        1 for a feature that is not equal to the first one of its slot.
    """

    codes: Any
    table: Any
    first: Any
    slot_of: Any
    differs: Any
