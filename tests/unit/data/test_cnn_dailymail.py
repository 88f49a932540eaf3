"""Which articles `load_news` returns, and what it refuses."""

import gzip
import hashlib
import json
import lzma

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.data import cnn_dailymail
from course_lib.data.cnn_dailymail import SPLITS, Article, load_news, read_lines
from course_lib.data.storage import DataError

PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
ARTICLES = {
    split: [
        Article(f"The {split} of {i} — “news”. More of it.", f"{split} {i} .\nMore .") for i in range(count)
    ]
    for split, count in (("train", 5), ("validation", 3), ("test", 2))
}
REMEDY = "delete it and put the original in its place"


def lines(articles: list[Article]) -> bytes:
    """The articles as JSON, one object a line."""
    records = ({"id": "x", "article": a.text, "highlights": a.summary} for a in articles)
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def put(folder, packed=""):
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, articles in ARTICLES.items():
        (folder / f"{split}.jsonl{packed}").write_bytes(PACKERS[packed](lines(articles)))
    return folder


@pytest.fixture
def home(small_mnist):
    """The data folder of a checkout, without data."""
    registry = []
    for split in SPLITS:
        content = lines(ARTICLES[split])
        registry += ["[[cnn_dailymail.files]]", f'name = "{split}.jsonl"', f"nbytes = {len(content)}"]
        registry += [f'sha256 = "{hashlib.sha256(content).hexdigest()}"']
    (small_mnist.data / "registry.toml").write_text("\n".join(registry))
    return small_mnist.data


@pytest.fixture
def mine(home, tmp_path, monkeypatch):
    """A folder that COURSE_DATA names."""
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    return tmp_path / "mine"


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("folder", ["", "cnn_dailymail/3.0.0"])
def test_lines_are_read_in_the_order_they_have(folder, packed, mine):
    put(mine / folder, packed)
    news = load_news()
    assert (news.train, news.validation, news.test) == tuple(ARTICLES[split] for split in SPLITS)
    where = f"COURSE_DATA/{folder}".rstrip("/")
    assert news.real and news.source == f"CNN/DailyMail (5 + 3 + 2 articles) from {where}."


def test_the_data_of_the_checkout_are_read_unless_course_data_has_them(home, mine):
    put(home / "cnn_dailymail")
    (mine / "mnist").mkdir()
    assert load_news().source == "CNN/DailyMail (5 + 3 + 2 articles) from data/cnn_dailymail."
    path = put(mine) / "train.jsonl"
    path.write_bytes(path.read_bytes().replace(b"train 0", b"train 9"))
    news = load_news()
    assert (
        news.source == "Your own data in the format of CNN/DailyMail (5 + 3 + 2 articles) from COURSE_DATA."
    )
    assert not news.real and news.name == "your own data"


def test_without_it_a_sentence_says_which_files_go_where(mine):
    (mine / "mnist").mkdir()
    with pytest.raises(DataError, match=r"put train.jsonl, .* data/cnn_.*COURSE_DATA holds no CNN/DailyMail"):
        load_news()


def test_a_part_of_it_is_an_error_in_course_data_and_passed_over_at_home(home, mine):
    (put(home / "cnn_dailymail") / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"put train.jsonl, .* into data/cnn_dailymail"):
        load_news()
    (put(mine) / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"mine has a part of CNN/DailyMail only; add test.jsonl"):
        load_news()


@pytest.mark.parametrize(
    ("found", "safe"), [("14.0.1", True), ("14.0.0", False), ("9.0", False), ("x", False)]
)
def test_a_pyarrow_that_executes_forged_files_is_not_used(found, safe, mine, monkeypatch):
    monkeypatch.setattr(cnn_dailymail, "version", lambda name: found)
    assert cnn_dailymail.has_safe_pyarrow() is safe
    if not safe:
        for split in SPLITS:
            (mine / f"{split}-00000-of-00001.parquet").write_bytes(b"PAR1")
        with pytest.raises(
            DataError, match=r"train-.*parquet cannot be read; install pyarrow 14.0.1 or newer"
        ):
            load_news()


def line(**record) -> bytes:
    return json.dumps(record).encode()


FORGED = {
    "no JSON": (b"<html>", "Expecting value"),
    "not UTF-8": (
        '{"article": "Caf\xe9", "highlights": "b"}'.encode("latin-1"),
        "'utf-8' codec can't decode",
    ),
    "a list": (b"[]", "no JSON object"),
    "other keys": (line(document="a", summary="b"), "no text 'article'"),
    "nothing as highlights": (line(article="a", highlights=None), "no text 'highlights'"),
    "a deep nest": (b"[" * 200_000, "recursion|no JSON"),
    "half a surrogate pair": (b'{"article": "a \\ud800", "highlights": "b"}', "surrogates not allowed"),
    "a line without an end": (b" " * (1 << 22), "more of it than of any article"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_line_is_refused_with_its_number(kind, mine):
    put(mine)
    content, clause = FORGED[kind]
    path = mine / "train.jsonl"
    path.write_bytes(lines(ARTICLES["train"][:2]) + content + b"\n")
    with pytest.raises(DataError, match=rf"line 3 of {path} is no article: .*({clause})") as caught:
        load_news()
    assert str(caught.value).endswith(REMEDY) and len(str(caught.value)) < 400


def test_a_file_of_too_many_lines_is_refused(mine, monkeypatch):
    put(mine)
    monkeypatch.setattr(cnn_dailymail, "ROWS", 4)
    with pytest.raises(DataError, match=r"line 5 of .*train.jsonl .*more of it"):
        load_news()


def test_lines_and_articles_without_text_are_left_out(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(
        b"\n" + line(article=" ", highlights="b") + b"\n  \n" + line(article=" a ", highlights="b\n")
    )
    assert list(read_lines(path)) == [Article("a", "b")]


def test_a_file_without_articles_is_refused(mine):
    (put(mine) / "validation.jsonl").write_bytes(b"\n")
    with pytest.raises(DataError, match=r"validation.jsonl has no article in it; delete it"):
        load_news()


@given(st.binary(max_size=100))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_articles_or_an_error(tmp_path, content):
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    try:
        assert all(isinstance(article, Article) for article in read_lines(path))
    except DataError as error:
        assert str(path) in str(error)


@pytest.fixture
def write_parquet():
    """Write columns to a parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(path, compression="snappy", **columns):
        parquet.write_table(pyarrow.table(columns), path, compression=compression)

    return write


def put_parquet(folder, write) -> None:
    for split, articles in ARTICLES.items():
        texts, summaries = [a.text for a in articles], [a.summary for a in articles]
        parts = [slice(0, 1), slice(1, None)] if split == "train" else [slice(None)]
        for number, part in enumerate(parts):
            path = folder / f"{split}-0000{number}-of-0000{len(parts)}.parquet"
            write(path, article=texts[part], highlights=summaries[part], id=["x"] * len(texts[part]))


def test_parquet_files_are_read_one_after_the_other(mine, write_parquet):
    put_parquet(mine, write_parquet)
    news = load_news()
    assert (news.train, news.validation, news.test) == tuple(ARTICLES[split] for split in SPLITS)


def test_a_damaged_parquet_file_is_refused(mine, write_parquet):
    put_parquet(mine, write_parquet)
    path = mine / "test-00000-of-00001.parquet"
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-8] + b"\xff\xff\xff\x7fPAR1"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{path} is not the original file: .*{REMEDY}"):
            load_news()


def test_a_parquet_file_of_other_columns_is_refused(mine, write_parquet):
    put_parquet(mine, write_parquet)
    path = mine / "test-00000-of-00001.parquet"
    for columns in ({"article": ["a"]}, {"article": [1], "highlights": ["b"]}, {"text": ["a"]}):
        write_parquet(path, **columns)
        with pytest.raises(DataError, match=rf"{path} is not the original file: .*no text"):
            load_news()


def test_a_parquet_file_that_could_be_a_bomb_is_refused(mine, write_parquet, monkeypatch):
    put_parquet(mine, write_parquet)
    path = mine / "test-00000-of-00001.parquet"
    write_parquet(path, "zstd", article=["a"], highlights=["b"])
    with pytest.raises(DataError, match=rf"{path} is not the original .* it is packed with ZSTD"):
        load_news()
    write_parquet(path, article=["a"] * 11, highlights=["b"] * 11)
    monkeypatch.setattr(cnn_dailymail, "ROWS", 10)
    with pytest.raises(DataError, match=r"it claims 11 articles of \d+ bytes|Exceeded size limit"):
        load_news()


def test_a_parquet_file_of_one_long_text_many_times_is_refused(mine, write_parquet):
    put_parquet(mine, write_parquet)
    import pyarrow

    zeros = pyarrow.array([0] * 100_000, pyarrow.int32())
    long = pyarrow.DictionaryArray.from_arrays(zeros, pyarrow.array(["a" * (3 << 20)]))
    short = pyarrow.DictionaryArray.from_arrays(zeros, pyarrow.array(["b"]))
    write_parquet(mine / "test-00000-of-00001.parquet", article=long, highlights=short)
    with pytest.raises(DataError, match=r"there is more of it than of any article|it claims"):
        load_news()
