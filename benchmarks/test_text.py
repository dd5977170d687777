"""Reading text beside pyarrow: decompression and a bare parse of the same bytes, same threads."""

import gzip
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from spdnn.io import tsv_writer
from spdnn.io.triples import BLOCK_BYTES
from spdnn.machine.threads import default_threads
from spdnn.sources.features import open_features
from spdnn.sources.folder import find_images, find_inputs
from spdnn.sources.networks import open_network

NEURONS, LAYERS = 1024, 120
FOLDER = Path(os.environ.get("SPDNN_DATA", "data"))
TYPES = {"row": pa.int32(), "column": pa.int32(), "value": pa.float32()}
GOAL = "1.3"


def bare(text):
    """Parse text into three columns and do nothing with them."""
    return pa.csv.read_csv(
        pa.BufferReader(text),
        read_options=pa.csv.ReadOptions(column_names=list(TYPES), block_size=BLOCK_BYTES),
        parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=TYPES),
    )


def bare_archive(path):
    """Unpack an archive in this thread, and parse its files in a pool."""
    with (
        ThreadPoolExecutor(default_threads()) as pool,
        gzip.open(path) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive,
    ):
        texts = (archive.extractfile(member).read() for member in archive if member.isfile())
        return sum(table.result().num_rows for table in [pool.submit(bare, t) for t in texts])


def tell(pair, report, what):
    clock, processor = pair.slowdown
    report(f"{what}: times bare pyarrow, clock", f"{clock:.2f}", GOAL)
    report(f"{what}: times bare pyarrow, processor", f"{processor:.2f}", GOAL)


def test_archive_of_layers(pair, report):
    path = FOLDER / f"neuron{NEURONS}-l1-{LAYERS}.tar.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there (set SPDNN_DATA)")
    pair.time(
        lambda: open_network(str(path), NEURONS, LAYERS),
        lambda: bare_archive(path),
    )
    tell(pair, report, path.name)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_inputs(pair, report, tmp_path, ending):
    if find_images(FOLDER) is None:
        pytest.skip(f"MNIST's training images are not in {FOLDER} (set SPDNN_DATA)")
    features = open_features(find_inputs(FOLDER, NEURONS), NEURONS).features
    path = tmp_path / f"sparse-images-{NEURONS}.tsv{ending}"
    tsv_writer.write_inputs(path, features)
    unpack = gzip.decompress if ending else bytes
    pair.time(
        lambda: open_features(str(path), NEURONS),
        lambda: bare(unpack(path.read_bytes())),
    )
    tell(pair, report, path.name)
