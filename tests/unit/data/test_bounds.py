"""Forged files of every format are refused in under two seconds and 200 MB, in a process of their own."""

import gzip
import json
import lzma
import struct
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import re, sys, time
from pathlib import Path
from course_lib.data import cifar10, cnn_dailymail, mnist
from course_lib.data.storage import DataError
loaders = mnist.load_mnist, cifar10.load_cifar10, cnn_dailymail.load_news
load = next(load for load in loaders if load.__name__.endswith(sys.argv[1]))
began = time.process_time()
try:
    print(load().source)
except DataError as error:
    print(error)
status = Path("/proc/self/status").read_text()
print(time.process_time() - began, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024)
"""
IMAGES = b"\0\0\x08\x03" + struct.pack(">3I", 60_000, 28, 28)
LINE = json.dumps({"article": "a" * 1_000_000, "highlights": "b"}).encode() + b"\n"


def mnist(folder: Path, images: bytes) -> None:
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(images)


def cifar(folder: Path, content: bytes) -> None:
    for number in range(1, 6):
        (folder / f"data_batch_{number}").write_bytes(content)


def news(folder: Path, content: bytes) -> None:
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_bytes(content)


FORGED = {
    "an IDX file that goes on": ("mnist", lambda at: mnist(at, gzip.compress(IMAGES + bytes(1 << 28), 1))),
    "an IDX file that claims": ("mnist", lambda at: mnist(at, IMAGES[:4] + b"\xff" * 12)),
    "a packed pickle": ("cifar10", lambda at: cifar(at, lzma.compress(bytes(1 << 27), preset=0))),
    "a long file": ("cifar10", lambda at: cifar(at, bytes(40_000_000))),
    "an archive": (
        "cifar10",
        lambda at: (at / "cifar-10-python.tar.gz").write_bytes(gzip.compress(bytes(1 << 26))),
    ),
    "packed lines": ("news", lambda at: news(at, lzma.compress(LINE * 300, preset=0))),
    "a line of lists": ("news", lambda at: news(at, b"[" + b"[]," * 300_000 + b"[]]\n")),
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory a process had")
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_costs_little(kind, tmp_path, monkeypatch):
    name, write = FORGED[kind]
    write(tmp_path)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    done = subprocess.run([sys.executable, "-c", LOAD, name], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    sentence, numbers = done.stdout.splitlines()
    seconds, megabytes = map(float, numbers.split())
    assert str(tmp_path) in sentence
    assert seconds < 2 and megabytes < 200, (sentence, seconds, megabytes)
