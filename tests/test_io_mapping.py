"""Arrays in mapped files are found again by another process."""

import pickle
from io import BytesIO
from pathlib import Path

import numpy as np

from spdnn.distributed.ranks import _Pickler
from spdnn.io import store
from spdnn.io.mapping import array_at, place_of
from tests.makers import dyadic_features, same_features


def test_an_array_of_a_store_is_mapped_again() -> None:
    features = dyadic_features(0, 20, 30)
    store.write_features(Path("inputs.spdnn"), features)
    mapped, _ = store.read_features(Path("inputs.spdnn"))
    place = place_of(mapped.indices)
    assert place is not None
    assert place.path == Path("inputs.spdnn").absolute()
    np.testing.assert_array_equal(array_at(place), features.indices)
    part = place_of(mapped.values[3:17])
    assert part is not None
    np.testing.assert_array_equal(array_at(part), features.values[3:17])


def test_an_array_of_its_own_has_no_place() -> None:
    assert place_of(np.arange(3)) is None
    assert place_of(np.frombuffer(b"abcd", dtype=np.uint8)) is None


def test_features_of_a_store_are_handed_on_by_their_place() -> None:
    features = dyadic_features(0, 20, 30)
    store.write_features(Path("inputs.spdnn"), features)
    mapped, _ = store.read_features(Path("inputs.spdnn"))
    part = mapped.every(5, 15, 1)
    buffers: list[pickle.PickleBuffer] = []
    head = BytesIO()
    _Pickler(head, protocol=5, buffer_callback=buffers.append).dump(part)
    assert sum(len(buffer.raw()) for buffer in buffers) == part.indptr.nbytes  # made, not mapped
    again = pickle.loads(head.getvalue(), buffers=buffers)
    assert same_features(again, features.part(5, 15))
    assert place_of(again.indices) is not None
