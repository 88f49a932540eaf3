"""CNN/DailyMail as articles and summaries: from the folder in COURSE_DATA, else from data/cnn_dailymail.

It is not downloaded: of two of the hub's files no digest is known.
Two forms are read: JSON lines, one object per line with the keys `article` and `highlights`; and the parquet
files of the Hugging Face hub, for which pyarrow 14.0.1 or newer must be installed. Both only hold text, so
your own articles are read, too, within bounds; they are called CNN/DailyMail when the digest of every file
is registered, else your own data. Hermann et al. (2015); See et al. (2017).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

from course_lib.data.dataset import OWN, described, remark, spaced
from course_lib.data.downloads import registered
from course_lib.data.packed import PIECE, naming, unpacked
from course_lib.data.storage import DataError, course_data, data_folders, shown

SPLITS = ("train", "validation", "test")
SUBFOLDERS = ("", "3.0.0", "cnn_dailymail", "cnn_dailymail/3.0.0")  # of COURSE_DATA
LINE_NBYTES = 1 << 20  # of an article; the longest of the set has some 20 kB
EXPANSION = 10  # times its length that a packed file of text unpacks to, and LINE_NBYTES more; usual are 3
ROWS = 400_000  # articles in a file; the full training set has 287 113
PYARROW = (14, 0, 1)  # the releases before execute code that a forged file contains (CVE-2023-47248)
CODECS = {"SNAPPY", "UNCOMPRESSED"}  # of parquet; others unpack a few bytes to gigabytes
NOT_DOWNLOADED = "no digest of all the hub's files is registered, so nothing is downloaded"
REMEDY = "delete it and put the original in its place"
INSTALL = "install pyarrow 14.0.1 or newer to read parquet files: python -m pip install 'pyarrow>=14.0.1'"


@dataclass(frozen=True, slots=True)
class Article:
    """A text and its reference summary."""

    text: str
    summary: str


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """Articles with their summaries, to train on, to watch training with, and to test with.

    `source` says in one sentence what they are and where they come from, `name` in a word or three:
    CNN/DailyMail, your own data. `real`: they are from the published data set, byte for byte.
    """

    source: str
    real: bool
    train: list[Article] = field(repr=False)
    validation: list[Article] = field(repr=False)
    test: list[Article] = field(repr=False)
    name: str = OWN


def load_news() -> News:
    """CNN/DailyMail, the same on every rank; DataError says which files to put where when it is not here.

    DataError, too, when a split or a part of a file is missing, or a file is not what its name says.
    """
    if found := find():
        return read(found)
    lines = ", ".join(f"{split}.jsonl" for split in SPLITS)
    files = f"{lines}, or the hub's train-00000-of-00003.parquet and so on,"
    raise DataError(
        f"CNN/DailyMail: {NOT_DOWNLOADED}; put {files} into data/cnn_dailymail.{remark('CNN/DailyMail')}"
    )


def find() -> dict[str, list[Path]] | None:
    """The files of each split on this machine; DataError when COURSE_DATA has some of them only."""
    base = course_data()
    given = (find_in(base / name) for name in SUBFOLDERS) if base else iter(())
    kept = (find_in(folder / "cnn_dailymail", strict=False) for folder in data_folders())
    return next((found for found in chain(given, kept) if found), None)


def find_in(folder: Path, *, strict: bool = True) -> dict[str, list[Path]] | None:
    """The files of each split in `folder`; when there are some only, DataError, or None unless `strict`."""
    found = {split: files_of(folder, split) for split in SPLITS}
    missing = [f"{split}.jsonl" for split, paths in found.items() if not paths]
    if strict and 0 < len(missing) < len(SPLITS):
        raise DataError(f"{folder} has a part of CNN/DailyMail only; add {', '.join(missing)}")
    return None if missing else found


def files_of(folder: Path, split: str) -> list[Path]:
    """The files of `split` in `folder`, JSON before parquet."""
    lines = [folder / f"{split}.jsonl{packed}" for packed in ("", ".gz", ".xz")]
    single = next((path for path in [*lines, folder / f"{split}.parquet"] if path.is_file()), None)
    return [single] if single else sorted(folder.glob(f"{split}-*-of-*.parquet"))


def read(found: dict[str, list[Path]]) -> News:
    """The articles in the files `found`; DataError unless each file is right."""
    splits = {split: list(chain.from_iterable(map(read_file, paths))) for split, paths in found.items()}
    if empty := [split for split in SPLITS if not splits[split]]:
        raise DataError(f"{found[empty[0]][0]} has no article in it; {REMEDY}")
    known = all(is_known(path) for paths in found.values() for path in paths)
    sentence = described("CNN/DailyMail", known, sizes(splits), shown(found[SPLITS[0]][0].parent))
    return News(sentence, known, **splits, name="CNN/DailyMail" if known else OWN)


def is_known(path: Path) -> bool:
    """Whether the file at `path` has, unpacked, the name, the length and the sha256 of a registered one."""
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    expected = {
        (file["nbytes"], file["sha256"])
        for file in registered("cnn_dailymail")["files"]
        if file["name"] == name
    }
    limit = max((nbytes for nbytes, _ in expected), default=0)
    if path.name == name and path.stat().st_size > limit:
        return False
    digest, nbytes = hashlib.sha256(), 0
    with naming(path, REMEDY), unpacked(path) as file:
        while nbytes <= limit and (piece := file.read(PIECE)):
            digest.update(piece)
            nbytes += len(piece)
    return (nbytes, digest.hexdigest()) in expected


def sizes(splits: dict[str, list[Article]]) -> str:
    """How many articles there are, for the sentence."""
    return f"{' + '.join(spaced(len(splits[split])) for split in SPLITS)} articles"


def read_file(path: Path) -> Iterator[Article]:
    """The articles in the file at `path`, one after the other; DataError at what is not right in it."""
    return read_parquet(path) if path.suffix == ".parquet" else read_lines(path)


def read_lines(path: Path) -> Iterator[Article]:
    """The articles in a file with one JSON object per line, packed or not, without those that lack text."""
    limit = EXPANSION * path.stat().st_size + LINE_NBYTES
    with naming(path, REMEDY), unpacked(path) as file:
        number, nbytes = 0, 0
        while line := file.readline(LINE_NBYTES + 1):
            number, nbytes = number + 1, nbytes + len(line)
            try:
                if len(line) > LINE_NBYTES or nbytes > limit or number > ROWS:
                    raise ValueError("there is more of it than of any article")
                if line.strip() and (article := to_article(json.loads(line.decode("utf-8")))):
                    yield article
            except (ValueError, RecursionError) as error:
                reason = " ".join(str(error).split())
                raise DataError(f"line {number} of {path} is no article: {reason:.200}; {REMEDY}") from None


def to_article(record: Any) -> Article | None:
    """The article of a `record` with texts `article` and `highlights`, None when one is empty."""
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    for key in ("article", "highlights"):
        if not isinstance(record.get(key), str):
            raise ValueError(f"it has no text {key!r}")
        record[key].encode()  # half a surrogate pair is no text: UnicodeEncodeError, a ValueError
    text, summary = record["article"].strip(), record["highlights"].strip()
    return Article(text, summary) if text and summary else None


def read_parquet(path: Path) -> Iterator[Article]:
    """The articles in a parquet file; DataError without pyarrow, or with one that executes forged files."""
    if not has_safe_pyarrow():
        raise DataError(f"{path} cannot be read; {INSTALL}")
    import pyarrow
    from pyarrow import parquet

    columns = ["article", "highlights"]
    limits = {"thrift_string_size_limit": LINE_NBYTES, "thrift_container_size_limit": ROWS}
    try:
        with parquet.ParquetFile(path, **limits) as file:
            check_claims(file.metadata, path.stat().st_size)
            if lacking := [name for name in columns if name not in file.schema_arrow.names]:
                raise ValueError(f"it has no text {lacking[0]!r}")
        # Texts that are often the same stay one text in memory: read_dictionary.
        with parquet.ParquetFile(path, read_dictionary=columns, **limits) as file:
            for batch in file.iter_batches(64, columns=columns):
                for row in range(batch.num_rows):
                    record = {name: batch.column(name)[row] for name in batch.schema.names}
                    if article := to_article({name: text_of(value) for name, value in record.items()}):
                        yield article
    except (pyarrow.ArrowException, ValueError, OSError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not the original file: {reason:.200}; {REMEDY}") from None


def has_safe_pyarrow() -> bool:
    """Whether pyarrow is installed and executes nothing that a file contains."""
    try:
        numbers = version("pyarrow").split(".")[:3]
        return tuple(int(number) for number in numbers) >= PYARROW
    except (PackageNotFoundError, ValueError):
        return False


def check_claims(claims: Any, nbytes: int) -> None:
    """ValueError when a parquet file of so many `nbytes` says that it holds far more than it can."""
    groups = [claims.row_group(i) for i in range(claims.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    if odd := {chunk.compression for chunk in chunks} - CODECS:
        raise ValueError(f"it is packed with {', '.join(sorted(odd))}; write it with snappy")
    unpacked_nbytes = sum(chunk.total_uncompressed_size for chunk in chunks)
    if claims.num_rows > ROWS or unpacked_nbytes > 25 * nbytes + LINE_NBYTES:  # snappy: at most 21 times
        raise ValueError(f"it claims {claims.num_rows} articles of {unpacked_nbytes} bytes")


def text_of(value: Any) -> Any:
    """The Python object that `value` of a column is; ValueError when it is longer than any article."""
    text = value.as_py()
    if isinstance(text, str) and len(text) > LINE_NBYTES:
        raise ValueError("there is more of it than of any article")
    return text
