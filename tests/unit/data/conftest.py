"""A small MNIST of 6 + 4 random images, a checkout's data folder that knows it, and mirrors on loopback."""

import gzip
import hashlib
import struct
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from course_lib.data import downloads, mnist, storage

SHAPES = {
    "train-images-idx3-ubyte": (6, 28, 28),
    "train-labels-idx1-ubyte": (6,),
    "t10k-images-idx3-ubyte": (4, 28, 28),
    "t10k-labels-idx1-ubyte": (4,),
}


@dataclass
class SmallMnist:
    """Its arrays, the content of its files, and the data folder whose registry lists them."""

    data: Path
    arrays: dict[str, np.ndarray]
    contents: dict[str, bytes]
    gzipped: dict[str, bytes]

    def put(self, folder: Path, *, zipped: bool = True) -> Path:
        """Write all files to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(
                self.gzipped[name] if zipped else content
            )
        return folder

    def register(self, *mirrors: str) -> None:
        """Write the registry: the files can be had at `mirrors`."""
        lines = ["[mnist]", 'title = "MNIST"', f"mirrors = {list(mirrors)}"]
        for name, content in self.contents.items():
            lines += ["[[mnist.files]]", f'name = "{name}.gz"']
            lines += [f"nbytes = {len(self.gzipped[name])}", f'sha256 = "{sha256(self.gzipped[name])}"']
            lines += [f'content_sha256 = "{sha256(content)}"']
        (self.data / "registry.toml").write_text("\n".join(lines))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file, written from its description."""
    lengths = b"".join(struct.pack(">I", length) for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path, monkeypatch) -> SmallMnist:
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(0, 10, shape).astype(np.uint8) for name, shape in SHAPES.items()}
    contents = {name: idx_bytes(array) for name, array in arrays.items()}
    gzipped = {name: gzip.compress(content, mtime=0) for name, content in contents.items()}
    data = tmp_path / "checkout" / "data"
    data.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(storage, "CHECKOUT_DATA", data)
    monkeypatch.setattr(downloads, "REGISTRY", data / "registry.toml")
    monkeypatch.setattr(mnist, "TRAIN", 60)
    monkeypatch.setattr(mnist, "TEST", 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("COURSE_DATA", "COURSE_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    small = SmallMnist(data, arrays, contents, gzipped)
    small.register()
    return small


@dataclass
class Mirrors:
    """A server whose folders are mirrors that behave well or badly, and what it was asked for."""

    address: str
    asked: Counter = field(default_factory=Counter)
    sent: Counter = field(default_factory=Counter)  # bytes of those that go on

    def __call__(self, kind: str) -> str:
        return f"{self.address}/{kind}/"


@pytest.fixture
def mirrors(small_mnist, monkeypatch):
    """The folders: good, slow, missing, login, altered, truncated, longer, dribbles, hangs, stalls.

    The bad ones of them send the small file, by which a mirror is chosen, as it is.
    """
    monkeypatch.setattr(downloads, "ANSWER_SECONDS", 1.0)
    free = threading.Event()

    def send_on(handler, content: bytes, kind: str):
        """The file, and zeros without an end; or a byte of it now and then."""
        with suppress(OSError):  # until nobody listens any more
            if kind == "longer":
                handler.wfile.write(content)
            while not free.is_set():
                handler.wfile.write(bytes(1 << 16) if kind == "longer" else content[:1])
                served.sent[kind] += 1 << 16 if kind == "longer" else 1
                time.sleep(0 if kind == "longer" else 0.2)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            _, kind, name = self.path.split("/")
            served.asked[kind, name] += 1
            content = small_mnist.gzipped[name.removesuffix(".gz")]
            small_file = name.startswith("t10k-labels")
            if kind == "hangs" or (kind == "stalls" and not small_file):
                free.wait()
                return
            if kind == "slow":
                time.sleep(0.2)
            if kind == "login":
                content = b"<html>Welcome to the hotel"
            if kind == "altered" and not small_file:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(404 if kind == "missing" else 200)
            if kind in ("longer", "dribbles") and not small_file:
                self.end_headers()
                send_on(self, content, kind)
                return
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(
                content[: len(content) // 2] if kind == "truncated" and not small_file else content
            )

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Mirrors(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served
    free.set()
    server.shutdown()
    server.server_close()
