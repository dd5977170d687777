import hashlib
import http.server
import re
import shutil
import threading
from collections import namedtuple

import pytest

from spdnn.errors import DataError
from spdnn.io import download

CONTENT = bytes(range(256)) * 20000
"""5 MB: several chunks."""


class Server:
    """Serves one file at any path; knows ranges, can break off, counts what it sent."""

    def __init__(self):
        self.content = CONTENT
        self.tag = '"one"'
        self.break_after = []
        self.status = 200
        self.knows_ranges = True
        self.requests = []
        self.n_sent = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))

    def answer(self, request):
        self.requests.append((request.path, request.headers.get("Range")))
        if self.status != 200:
            request.send_error(self.status)
            return
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if match and self.knows_ranges and request.headers.get("If-Range") == self.tag:
            start = int(match[1])
            if start >= len(self.content):
                request.send_error(416)
                return
            request.send_response(206)
            end = len(self.content) - 1
            request.send_header("Content-Range", f"bytes {start}-{end}/{len(self.content)}")
        else:
            request.send_response(200)
        request.send_header("ETag", self.tag)
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        stop = start + self.break_after.pop(0) if self.break_after else len(self.content)
        request.wfile.write(self.content[start:stop])
        self.n_sent += len(self.content[start:stop])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)


@pytest.fixture
def server():
    server = Server()
    server.thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    server.thread.join()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole_with_its_checksum_beside_it(server, tmp_path):
    folder = tmp_path / "data"
    seen = []
    path = download.fetch_file([f"{server.url}/a/file"], folder, progress=seen.append)
    assert path == folder / "file"
    assert path.read_bytes() == CONTENT
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (folder / "file.sha256").read_text() == f"{digest}  file\n"
    assert names(folder) == ["file", "file.sha256"]
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    for _ in range(2):
        download.fetch_file([f"{server.url}/file"], tmp_path)
    assert len(server.requests) == 1


def test_a_transfer_that_breaks_off_is_taken_up_where_it_was(server, tmp_path):
    server.break_after = [3_000_000, 1_000_000]
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 3
    assert server.n_sent < len(CONTENT) + 2 * download.CHUNK_BYTES


def test_a_later_call_takes_up_what_an_earlier_one_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 0)
    server.break_after = [3_000_000]
    with pytest.raises(DataError, match="goes on where it broke off"):
        download.fetch_file([f"{server.url}/file"], tmp_path)
    assert names(tmp_path) == ["file.part", "file.part.tag"]
    n_there = (tmp_path / "file.part").stat().st_size
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == ("/file", f"bytes={n_there}-")
    assert names(tmp_path) == ["file", "file.sha256"]


def test_a_file_that_changed_meanwhile_is_fetched_anew(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 0)
    server.break_after = [3_000_000]
    with pytest.raises(DataError):
        download.fetch_file([f"{server.url}/file"], tmp_path)
    server.tag, server.content = '"two"', CONTENT[::-1]
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_it_anew(server, tmp_path):
    server.knows_ranges = False
    server.break_after = [3_000_000]
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_whole_already_does_no_harm(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    (tmp_path / "file.part.tag").write_text(server.tag)
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_file_damaged_since_is_fetched_again(server, tmp_path):
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    path.write_bytes(b"damaged")
    download.fetch_file([f"{server.url}/file"], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_file_with_another_checksum_is_refused_and_nothing_is_left(server, tmp_path):
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+: its sha256 is not 0000"):
        download.fetch_file([f"{server.url}/file"], tmp_path, sha256="0" * 64)
    assert names(tmp_path) == []


def test_the_recorded_checksum_holds_against_another_file(server, tmp_path):
    path = download.fetch_file([f"{server.url}/file"], tmp_path)
    path.unlink()
    server.content = CONTENT[::-1]
    with pytest.raises(DataError, match="its sha256 is not"):
        download.fetch_file([f"{server.url}/file"], tmp_path)


def test_the_next_mirror_is_asked_where_one_fails(server, tmp_path, monkeypatch):
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setattr(download, "IMAGES_SHA256", digest)
    mirrors = ["http://127.0.0.1:9/mnist", f"{server.url}/mnist"]
    path = download.fetch_images(tmp_path, mirrors)
    assert path == tmp_path / "train-images-idx3-ubyte.gz"
    assert [request for request, _ in server.requests] == [f"/mnist/{path.name}"]


def test_offline_a_line_says_what_to_do(tmp_path):
    mirrors = ["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"]
    message = (
        r"cannot fetch train-images-idx3-ubyte.gz \(2 servers tried, the last is "
        r"127.0.0.1:9: no connection\): try again .*put it into"
    )
    with pytest.raises(DataError, match=message) as error:
        download.fetch_images(tmp_path, mirrors)
    assert "\n" not in str(error.value)
    assert names(tmp_path) == []


def test_a_server_that_has_not_got_it_is_named(server, tmp_path):
    server.status = 404
    with pytest.raises(DataError, match="HTTP 404"):
        download.fetch_file([f"{server.url}/file"], tmp_path)


def test_too_little_room_is_said_before_the_transfer(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10, 10, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"file needs 0\.0 GiB more, 0\.0 GiB are free in"):
        download.fetch_file([f"{server.url}/file"], tmp_path)
    assert "file" not in names(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataError, match="cannot write"):
        download.fetch_file(["http://127.0.0.1:9/file"], tmp_path / "data")


def test_the_published_files_have_their_addresses():
    assert download.official_urls("weights", 4096) == [
        f"{download.CHALLENGE_URL}/dnn/neuron4096.tar.gz"
    ]
    assert download.official_urls("inputs", 1024, "http://here") == [
        "http://here/mnist/sparse-images-1024.tsv.gz"
    ]
    assert download.official_urls("categories", 65536, "http://here") == [
        f"http://here/dnn/neuron65536-l{depth}-categories.tsv" for depth in (120, 480, 1920)
    ]
    with pytest.raises(DataError, match="not an official size"):
        download.official_urls("weights", 1000)
