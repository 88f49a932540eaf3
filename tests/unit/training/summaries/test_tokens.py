"""Tokens of texts and back, and the cache that encodes once."""

from pathlib import Path

import numpy as np
import pytest

from course_lib.data.generated_news import Article, make_news
from course_lib.data.storage import DataError
from course_lib.training.summaries import tokens
from course_lib.training.summaries.tokens import END, PAD, encode, encode_cached, to_text, train_tokenizer

NEWS = make_news(30, seed=0)
LIMITS = {"article_tokens": 200, "summary_tokens": 40}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((each.text for each in NEWS), 600)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(tokens, "writable_folder", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text", ["Ana Korkov opened a mill.", "naïve “quotes” – €5, 3.14", "日本 🙂", "<pad>x"]
)
def test_a_text_comes_back_whole_whatever_its_letters(tokenizer, text: str) -> None:
    if text.startswith("<pad>"):  # a special token in a text is no letters
        assert to_text(tokenizer, tokenizer.encode(text).ids) == "x"
    else:
        assert to_text(tokenizer, tokenizer.encode(text).ids) == text


def test_text_ends_at_the_first_end(tokenizer) -> None:
    ids = tokenizer.encode("a mill").ids
    assert to_text(tokenizer, [*ids, END, *ids, PAD]) == "a mill"


def test_a_vocabulary_is_bounded_by_the_bytes_and_by_16_bits() -> None:
    with pytest.raises(ValueError, match="a vocabulary of 100 cannot be; choose 258 to 65536"):
        train_tokenizer(["a"], 100)
    assert train_tokenizer(["a mill, a mill"], 258).get_vocab_size() == 258


def test_encoded_texts_end_with_end_and_are_filled_up(tokenizer) -> None:
    made = encode(tokenizer, NEWS, **LIMITS)
    assert len(made) == 30 and made.articles.dtype == np.uint16
    for row, article in zip(made.summaries, NEWS, strict=True):
        used = row[row != PAD]
        assert used[-1] == END and (used != END).sum() == len(used) - 1
        assert to_text(tokenizer, row.tolist()) == article.summary


def test_a_long_text_is_cut_and_still_ends(tokenizer) -> None:
    made = encode(tokenizer, NEWS[:1], article_tokens=5, summary_tokens=3)
    assert made.articles.shape == (1, 5) and made.articles[0, -1] == END
    assert made.articles[0, :4].tolist() == tokenizer.encode(NEWS[0].text).ids[:4]


def test_limits_without_room_are_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match="1 tokens leave no room"):
        encode(tokenizer, NEWS, article_tokens=1, summary_tokens=10)


def test_no_articles_are_an_empty_table(tokenizer) -> None:
    assert encode(tokenizer, [], **LIMITS).articles.shape == (0, 1)


def test_the_second_time_is_read_from_the_file(
    tokenizer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encode_cached(tokenizer, NEWS, **LIMITS)
    monkeypatch.setattr(tokens, "encode", lambda *args, **options: pytest.fail("encoded again"))
    again = encode_cached(tokenizer, NEWS, **LIMITS)
    assert np.array_equal(first.articles, again.articles)
    assert np.array_equal(first.summaries, again.summaries)
    assert [path.suffix for path in (home / "cache").glob("tokens-*")] == [".npz"]


@pytest.mark.parametrize("change", ["article", "summary", "limit", "tokenizer"])
def test_other_content_makes_another_file(tokenizer, home: Path, change: str) -> None:
    encode_cached(tokenizer, NEWS, **LIMITS)
    news, limits = list(NEWS), dict(LIMITS)
    if change == "article":
        news[3] = Article(news[3].text + " More.", news[3].summary)
    elif change == "summary":
        news[3] = Article(news[3].text, news[3].summary + " More.")
    elif change == "limit":
        limits["article_tokens"] = 100
    other = train_tokenizer(["another text"], 300) if change == "tokenizer" else tokenizer
    made = encode_cached(other, news, **limits)
    assert len(list((home / "cache").glob("tokens-*.npz"))) == 2
    assert np.array_equal(made.articles, encode(other, news, **limits).articles)


def test_a_text_that_moves_from_article_to_summary_is_other_content(tokenizer) -> None:
    one, two = Article("ab", "c"), Article("a", "bc")
    assert tokens.fingerprint(tokenizer, [one], 9, 9) != tokens.fingerprint(tokenizer, [two], 9, 9)


def test_a_damaged_file_is_made_anew(tokenizer, home: Path) -> None:
    first = encode_cached(tokenizer, NEWS, **LIMITS)
    (path,) = (home / "cache").glob("tokens-*.npz")
    path.write_bytes(path.read_bytes()[:-40])
    assert np.array_equal(encode_cached(tokenizer, NEWS, **LIMITS).articles, first.articles)


def test_without_a_folder_to_write_to_it_encodes_all_the_same(
    tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "writable_folder", lambda: None)
    assert len(encode_cached(tokenizer, NEWS, **LIMITS)) == 30


def test_a_full_disk_is_a_sentence(tokenizer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("course_lib.data.storage.os.replace", full)
    with pytest.raises(DataError, match="no space is left"):
        encode_cached(tokenizer, NEWS, **LIMITS)
