"""CNN/DailyMail as articles and summaries, or generated news in its stead: one call that says what you got.

    the folder in COURSE_DATA  →  data/cnn_dailymail  →  a download from the hub to there  →  generated news

Two forms are read: JSON, one object a line, with the keys `article` and `highlights`; and the parquet files
of the Hugging Face hub, for which pyarrow must be installed. Hermann et al. (2015); See et al. (2017).
"""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from course_lib.training.datasets import FETCH_PATIENCE, LESSON_PATIENCE, course_data, place, spaced
from course_lib.training.downloads import DownloadError, is_offline, obtain, read_registry
from course_lib.training.news import Article, make_news
from course_lib.training.storage import DataError, homes
from course_lib.training.unpacking import naming, unpacked

SPLITS = ("train", "validation", "test")
SUBFOLDERS = ("", "3.0.0", "cnn_dailymail", "cnn_dailymail/3.0.0")  # of COURSE_DATA
NUMBERS = {"train": 20_000, "validation": 500, "test": 500}  # of generated articles
SEEDS = {"train": 1, "validation": 2, "test": 3}
LINE_NBYTES = 1 << 20  # of an article; the longest of the set has some 20 kB
FILE_NBYTES = 1 << 31  # that a file unpacks to, or says so
ROWS = 400_000  # articles in a file; the whole training set has 287 113
REMEDY = "delete it and put the original in its place"
INSTALL = "install pyarrow to read parquet files: python -m pip install pyarrow"


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """Articles with their summaries, to train on, to watch training with, and to test with.

    `source` says in one sentence what they are and where they come from, `real` whether people wrote them.
    Generated ones of `validation` and `test` have combinations and phrasings that those of `train` have not.
    """

    source: str
    real: bool
    train: list[Article] = field(repr=False)
    validation: list[Article] = field(repr=False)
    test: list[Article] = field(repr=False)


def load_news(
    source: Path | None = None,
    *,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
) -> News:
    """CNN/DailyMail, or the generated news where it cannot be had; the same on every rank.

    At most so many articles of each split, the first ones. `source` is a folder to be read instead of those
    that are searched for. DataError when a split or a part of a file is missing, or a file is not what its
    name says.
    """
    limits = {"train": train, "validation": validation, "test": test}
    if any(limit is not None and limit < 0 for limit in limits.values()):
        raise ValueError(f"articles are asked for by {limits}; use numbers from 0")
    if source is not None:
        return read(find_in(Path(source)) or refuse(Path(source)), limits)
    if found := find():
        return read(found, limits)
    try:
        folder = download(patience=LESSON_PATIENCE)
    except DownloadError as error:
        return stand_in(f"{error}.{remark()}", limits)
    return read(find_in(folder) or refuse(folder), limits)


def fetch_news() -> str:
    """Download CNN/DailyMail unless it is here, read it, and say where it is; DataError when it fails."""
    try:
        folder = found["train"][0].parent if (found := find()) else download(FETCH_PATIENCE, insist=True)
    except DownloadError as error:
        details = f" ({'; '.join(error.details)})" if error.details else ""
        remedy = "unset COURSE_OFFLINE" if is_offline() else "try again later"
        files = ", ".join(f"{split}.jsonl" for split in SPLITS)
        raise DataError(
            f"CNN/DailyMail: {error}{details}; {remedy}, or put {files} into data/cnn_dailymail"
        ) from error
    return read(find_in(folder) or refuse(folder), {}).source


def download(patience: float, insist: bool = False) -> Path:
    """The folder with the hub's files; DownloadError when they cannot be had, or not be read."""
    if importlib.util.find_spec("pyarrow") is None and not is_offline():
        raise DownloadError(f"the files of the hub cannot be read; {INSTALL}")
    return obtain(read_registry("cnn_dailymail"), patience=patience, insist=insist)


def find() -> dict[str, list[Path]] | None:
    """The files of each split on this machine; DataError when COURSE_DATA has some of them only."""
    base = course_data()
    given = (find_in(base / name) for name in SUBFOLDERS) if base else iter(())
    kept = (find_in(home / "cnn_dailymail", whole=False) for home in homes())
    return next((found for found in chain(given, kept) if found), None)


def find_in(folder: Path, *, whole: bool = True) -> dict[str, list[Path]] | None:
    """The files of each split in `folder`; when there are some only, DataError, or None unless `whole`."""
    found = {split: files_of(folder, split) for split in SPLITS}
    missing = [f"{split}.jsonl" for split, paths in found.items() if not paths]
    if whole and 0 < len(missing) < len(SPLITS):
        raise DataError(f"{folder} has a part of CNN/DailyMail only; add {', '.join(missing)}")
    return None if missing else found


def files_of(folder: Path, split: str) -> list[Path]:
    """The files of `split` in `folder`, JSON before parquet."""
    lines = [folder / f"{split}.jsonl{packed}" for packed in ("", ".gz", ".xz")]
    whole = next((path for path in [*lines, folder / f"{split}.parquet"] if path.is_file()), None)
    return [whole] if whole else sorted(folder.glob(f"{split}-*-of-*.parquet"))


def refuse(folder: Path) -> dict[str, list[Path]]:
    """What is to be done when there is nothing in `folder`."""
    files = ", ".join(f"{split}.jsonl" for split in SPLITS)
    raise DataError(f"{folder} holds no CNN/DailyMail; name the folder of {files}")


def read(found: dict[str, list[Path]], limits: dict[str, int | None]) -> News:
    """The articles in the files `found`, cut to `limits`; DataError unless each file is right."""
    splits = {
        split: list(islice(chain.from_iterable(map(read_file, paths)), limits.get(split)))
        for split, paths in found.items()
    }
    if empty := [split for split in SPLITS if not splits[split] and limits.get(split) != 0]:
        raise DataError(f"{found[empty[0]][0]} has no article in it; {REMEDY}")
    folder = found[SPLITS[0]][0].parent
    return News(f"CNN/DailyMail ({sizes(splits)}) from {place(folder)}.", True, **splits)


def sizes(splits: dict[str, list[Article]]) -> str:
    """How many articles there are, for the sentence."""
    return f"{' + '.join(spaced(len(splits[split])) for split in SPLITS)} articles"


def read_file(path: Path) -> Iterator[Article]:
    """The articles in the file at `path`, one after the other; DataError at what is not right in it."""
    return read_parquet(path) if path.suffix == ".parquet" else read_lines(path)


def read_lines(path: Path) -> Iterator[Article]:
    """The articles in a file with one JSON object a line, packed or not; those without text are left out."""
    with naming(path, REMEDY), unpacked(path) as file:
        number, nbytes = 0, 0
        while line := file.readline(LINE_NBYTES + 1):
            number, nbytes = number + 1, nbytes + len(line)
            try:
                if len(line) > LINE_NBYTES or nbytes > FILE_NBYTES or number > ROWS:
                    raise ValueError("there is more of it than of any article")
                if line.strip() and (article := to_article(json.loads(line.decode("utf-8")))):
                    yield article
            except (ValueError, RecursionError) as error:
                raise DataError(f"line {number} of {path} is no article: {error}; {REMEDY}") from None


def to_article(record: Any) -> Article | None:
    """The article of a `record` with texts `article` and `highlights`, None when one is empty."""
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    for key in ("article", "highlights"):
        if not isinstance(record.get(key), str):
            raise ValueError(f"it has no text {key!r}")
    text, summary = record["article"].strip(), record["highlights"].strip()
    return Article(text, summary) if text and summary else None


def read_parquet(path: Path) -> Iterator[Article]:
    """The articles in a parquet file; DataError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path} cannot be read; {INSTALL}") from None
    limits = {"thrift_string_size_limit": LINE_NBYTES, "thrift_container_size_limit": ROWS}
    try:
        with parquet.ParquetFile(path, **limits) as file:
            claims = file.metadata
            groups = (claims.row_group(i) for i in range(claims.num_row_groups))
            rows, nbytes = claims.num_rows, sum(group.total_byte_size for group in groups)
            if rows > ROWS or nbytes > FILE_NBYTES:
                raise ValueError(f"it claims {rows} articles of {nbytes} bytes")
            for batch in file.iter_batches(256, columns=["article", "highlights"]):
                yield from filter(None, map(to_article, batch.to_pylist()))
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not the original file: {reason:.200}; {REMEDY}") from None


def remark() -> str:
    """What a source adds when COURSE_DATA is a folder of other data sets."""
    return " COURSE_DATA holds no CNN/DailyMail." if course_data() else ""


def stand_in(reason: str, limits: dict[str, int | None]) -> News:
    """Generated news, cut to `limits`, and the `reason` why it is needed."""
    splits = {split: generated(split, limits[split]) for split in SPLITS}
    return News(f"Generated news ({sizes(splits)}) in place of CNN/DailyMail: {reason}", False, **splits)


def generated(split: str, limit: int | None) -> list[Article]:
    """The generated articles of `split`: at most `limit` of them."""
    number = NUMBERS[split] if limit is None else min(limit, NUMBERS[split])
    return make_news(number, seed=SEEDS[split], split="train" if split == "train" else "held_out")
