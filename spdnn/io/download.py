"""Downloads of MNIST's images and of the published data set.

pooch keeps the files and checks them. It cannot resume a download that broke off, so the downloader
below does. The sha256 of a file is kept beside it, in a form that ``sha256sum -c`` reads. It is
recorded at the first download and checked at later ones.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.io.files import whole_file

if TYPE_CHECKING:
    import requests

Progress = Callable[[float], None]

IMAGES_FILE = "train-images-idx3-ubyte.gz"
IMAGES_SHA256 = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
"""sha256 of the packed file that LeCun, Cortes and Burges published and all mirrors keep."""

IMAGES_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://raw.githubusercontent.com/fgnt/mnist/master",
)
"""Addresses of folders that hold `IMAGES_FILE`, tried in this order."""

CHALLENGE_URL = "https://graphchallenge.s3.amazonaws.com/synthetic/sparsechallenge_2019"
"""The published data set: ``dnn/`` (weights, categories) and ``mnist/`` (inputs)."""

TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and between two pieces of an answer."""

RETRIES = 5
"""Number of times that a transfer is resumed after it broke off."""

PAUSE = 1.0
"""Seconds before the first retry. Each further one waits that much longer."""

CHUNK_BYTES = 1 << 20
"""Bytes received at a time."""


def fetch_images(
    folder: Path, mirrors: Sequence[str] | None = None, progress: Progress | None = None
) -> Path:
    """Fetch MNIST's 60000 training images, unless they are there.

    Parameters
    ----------
    folder : Path
        The folder to keep them in, which is made if it is not there.
    mirrors : sequence of str, optional
        Addresses of folders that hold them; `IMAGES_MIRRORS` where not given.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Path
        The packed IDX file.

    Raises
    ------
    DataError
        If no mirror gives the right file.
    """
    urls = [f"{mirror}/{IMAGES_FILE}" for mirror in mirrors or IMAGES_MIRRORS]
    return fetch_file(urls, folder, IMAGES_SHA256, progress)


def official_urls(kind: str, neurons: int, url: str | None = None) -> list[str]:
    """List the addresses of the published files of one size.

    Parameters
    ----------
    kind : {"weights", "inputs", "categories"}
        The files to list. Weights are one archive of 1920 layers. There is one file of categories
        for each depth.
    neurons : int
        An official size.
    url : str, optional
        Address of the data set; `CHALLENGE_URL` where not given.

    Returns
    -------
    list of str
        The addresses of the files.

    Raises
    ------
    DataError
        If it is not an official size.
    """
    if neurons not in challenge.SIZES:
        sizes = ", ".join(map(str, challenge.SIZES))
        raise DataError(f"{neurons} is not an official size ({sizes})")
    base = url or CHALLENGE_URL
    if kind == "inputs":
        return [f"{base}/mnist/{challenge.inputs_file(neurons)}.gz"]
    if kind == "weights":
        return [f"{base}/dnn/{challenge.weights_folder(neurons)}.tar.gz"]
    return [f"{base}/dnn/{challenge.categories_file(neurons, depth)}" for depth in challenge.DEPTHS]


def fetch_file(
    urls: Sequence[str],
    folder: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch one file, unless it is there and its checksum is right.

    Parameters
    ----------
    urls : sequence of str
        The same file on several servers, tried in order.
    folder : Path
        The folder to keep it in, which is made if it is not there. A transfer that broke off leaves
        ``*.part`` in it, which the next one resumes.
    sha256 : str, optional
        sha256 of the file; where not given, the one in ``*.sha256`` beside it, if there is one.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    DataError
        If pooch is not installed, no server gives the file, its checksum is wrong, or it
        cannot be written.
    """
    name = urls[0].rsplit("/", 1)[-1]
    path = folder / name
    try:
        import pooch
        import requests
    except ImportError as error:
        raise DataError(
            f"fetching {name} needs pooch: pip install 'spdnn[fetch]', "
            f"or put the file into {folder} yourself"
        ) from error
    # pooch announces every file on stderr. The command line has its own messages.
    pooch.get_logger().setLevel("WARNING")
    record = path.with_name(f"{name}.sha256")
    reason = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        expected = sha256 or _recorded(record)
        for url in urls:
            try:
                pooch.retrieve(url, expected, name, folder, downloader=_Downloader(path, progress))
            except requests.RequestException as error:
                reason = f"{_host(url)}: {_short(error)}"
            except ValueError:  # pooch raises it where the checksum is wrong
                reason = f"{_host(url)}: its sha256 is not {expected}"
            else:
                if not record.exists():
                    _record(record, expected or pooch.file_hash(str(path)), name)
                return path
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    tried = "" if len(urls) == 1 else f"{len(urls)} servers tried, the last is "
    raise DataError(
        f"cannot fetch {name} ({tried}{reason}): try again (it goes on where it broke off), "
        f"or get the file elsewhere and put it into {folder}"
    )


def _record(record: Path, sha256: str, name: str) -> None:
    """Write the file beside another one that tells its sha256."""
    with whole_file(record) as file:
        file.write(f"{sha256}  {name}\n".encode())


class _Downloader:
    """Downloads for pooch into ``*.part`` beside the file, and resumes an earlier transfer.

    Parameters
    ----------
    path : Path
        The file to make.
    progress : callable or None
        Called with the fraction done.
    """

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.part = path.with_name(f"{path.name}.part")
        self.tag = path.with_name(f"{path.name}.part.tag")
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        import requests

        for attempt in range(1 + RETRIES):
            try:
                self._take_up(url)
                break
            except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
                # Without a first byte there is nothing to resume, and the next server is tried.
                if attempt == RETRIES or not self.part.exists():
                    raise
                time.sleep(PAUSE * (attempt + 1))
        os.replace(self.part, output_file)
        self.tag.unlink(missing_ok=True)

    def _take_up(self, url: str) -> None:
        """Ask for the missing bytes. The server's tag tells whether it is still the same file."""
        import requests

        headers = {"Accept-Encoding": "identity"}
        if self.part.exists() and self.tag.exists():
            headers["Range"] = f"bytes={self.part.stat().st_size}-"
            headers["If-Range"] = self.tag.read_text()
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                self.part.unlink()  # it was whole or too long, so the transfer begins again
                return self._take_up(url)
            answer.raise_for_status()
            is_rest = answer.status_code == requests.codes.partial_content
            n_there = self.part.stat().st_size if is_rest else 0
            self._keep_tag(answer)
            self._write(answer, n_there)
        return None

    def _keep_tag(self, answer: "requests.Response") -> None:
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if tag is None or tag.startswith("W/"):  # equal weak tags do not mean equal bytes
            self.tag.unlink(missing_ok=True)
        else:
            self.tag.write_text(tag)

    def _write(self, answer: "requests.Response", n_there: int) -> None:
        import requests

        n_missing = int(answer.headers.get("Content-Length", 0))
        n_free = shutil.disk_usage(self.part.parent).free
        if n_missing > n_free:
            raise DataError(
                f"{self.part.name.removesuffix('.part')} needs {n_missing / 2**30:.1f} GiB more, "
                f"{n_free / 2**30:.1f} GiB are free in {self.part.parent}"
            )
        with open(self.part, "ab" if n_there else "wb") as file:
            for chunk in answer.iter_content(CHUNK_BYTES):
                file.write(chunk)
                if self.progress is not None and n_missing:
                    self.progress(file.tell() / (n_there + n_missing))
            if file.tell() < n_there + n_missing:  # older urllib3 does not raise
                raise requests.ConnectionError("the transfer broke off")


def _recorded(record: Path) -> str | None:
    """The sha256 that was recorded when the file was first fetched, None if there is none."""
    if not record.exists():
        return None
    fields = record.read_text().split()
    if not fields or len(fields[0]) != 64:
        raise DataError(f"{record}: not a sha256 file; remove it to accept the file as it is")
    return fields[0]


def _host(url: str) -> str:
    return urlsplit(url).netloc or url


def _short(error: Exception) -> str:
    """Describe an error in a few words, since requests wraps the cause several times."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error).splitlines()[0]
