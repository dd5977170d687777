"""The Sparse DNN Graph Challenge as data: sizes, biases, file names, known counts.

Source: Kepner, Alford, Gadepally, Jones, Milechin, Robinett and Samsi, "Sparse Deep
Neural Network Graph Challenge", HPEC 2019, and the data set published with it.
"""

from dataclasses import dataclass

from spdnn.errors import DataError

FEATURES = 60000
"""Number of input images (features) of every official network."""

DEPTHS = (120, 480, 1920)
"""Official numbers of layers."""

EDGES_PER_NEURON = 32
"""Edges of every neuron of an official network."""

WEIGHT = 1.0 / 16.0
"""Weight of every edge of an official network."""

YMAX = 32.0
"""Cap of the activations."""


@dataclass(frozen=True)
class Size:
    """An official size of layers, and the known facts of its networks.

    Attributes
    ----------
    neurons : int
        Neurons of each layer.
    bias : float
        Bias of every neuron.
    input_nonzeros : int
        Non-zeros of the published inputs of 60000 features.
    categories : int
        Number of categories after 120 layers. It is the same after 480 and 1920.
    """

    neurons: int
    bias: float
    input_nonzeros: int
    categories: int


SIZES = {
    size.neurons: size
    for size in (
        Size(1024, -0.30, 6374505, 1812),
        Size(4096, -0.35, 25019051, 1801),
        Size(16384, -0.40, 98858913, 1918),
        Size(65536, -0.45, 392191985, 1994),
    )
}
"""The official sizes by number of neurons."""


@dataclass(frozen=True)
class KnownCategories:
    """The known list of a network's categories, by its sha256.

    Attributes
    ----------
    sha256 : str
        sha256 of the bytes of the file of all categories, in hexadecimal.
    count : int
        Number of categories.
    is_published : bool
        Whether the list is the published file. Otherwise it was computed with this project's
        float64 reference (engine "scipy") from the recipes of weights and inputs.
    """

    sha256: str
    count: int
    is_published: bool


_PUBLISHED_1024 = "a006e26755ca317ecf629035972137457705f20e3139b7796a2f9e9d58c8f4e1"
_BY_REFERENCE = {
    1024: _PUBLISHED_1024,
    4096: "5ff66a396a73723af800e551214b2c5f89efc77a7062e231e361aecd60f672a0",
    16384: "1964db1f710c271c225b9512f3a13dfeb5e25de4c0f0139ae53b3933b99a60d9",
    65536: "6962e1529586f3dede57d7e1d99565605ef0bbb51cb43789627886644e6c0ef8",
}
"""sha256 by neurons. All features were run through all layers: it is the same at each depth."""

CATEGORIES_SHA256 = {
    **{
        (neurons, depth): KnownCategories(sha256, SIZES[neurons].categories, is_published=False)
        for neurons, sha256 in _BY_REFERENCE.items()
        for depth in DEPTHS
    },
    (1024, 120): KnownCategories(_PUBLISHED_1024, SIZES[1024].categories, is_published=True),
}
"""The known lists of categories, by neurons and layers."""


def official_bias(neurons: int) -> float:
    """Bias of every neuron of an official network.

    Parameters
    ----------
    neurons : int
        Neurons of each layer.

    Raises
    ------
    DataError
        If this is no official size.
    """
    if neurons not in SIZES:
        raise DataError(f"{neurons} neurons have no official bias: give one")
    return SIZES[neurons].bias


def weights_folder(neurons: int) -> str:
    """Name of the published folder that holds the layers of one size."""
    return f"neuron{neurons}"


def layer_file(neurons: int, layer: int) -> str:
    """Name of a published layer file; `layer` counts from 1."""
    return f"n{neurons}-l{layer}.tsv"


def inputs_file(neurons: int) -> str:
    """Name of the published inputs file of one size."""
    return f"sparse-images-{neurons}.tsv"


def categories_file(neurons: int, layers: int) -> str:
    """Name of the published truth file of one network."""
    return f"neuron{neurons}-l{layers}-categories.tsv"


def edges(neurons: int, layers: int) -> int:
    """Stored weights of an official network of that width and depth."""
    return EDGES_PER_NEURON * neurons * layers
