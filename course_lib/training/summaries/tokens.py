"""From texts to arrays of tokens: a byte-pair encoding trained here, and a cache of what it encoded.

    " Ana Korkov opened…"  →  bytes  →  the most frequent pair becomes one token, again and again  →  [311, …]

Every byte is a token, so no text is unknown; a common word is one token. Sennrich, Haddow and Birch, "Neural
Machine Translation of Rare Words with Subword Units" (2016).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from course_lib.data.generated_news import Article
from course_lib.data.storage import machine_lock, read_cache, writable_folder, write_cache
from course_lib.training.summaries.quiet import be_quiet

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("<pad>", "</s>")
PAD, END = 0, 1
BYTES = 256
TIMEOUT = 60.0  # seconds that a process waits for another one that fills the cache
Tokens = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Articles (N, A) and their summaries (N, S) as tokens; END closes each, PAD fills up."""

    articles: Tokens
    summaries: Tokens

    def __len__(self) -> int:
        return len(self.articles)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """A byte-level BPE with up to `vocabulary` tokens, learnt from `texts`."""
    least = BYTES + len(SPECIAL)
    if not least <= vocabulary <= 65_536:
        raise ValueError(f"a vocabulary of {vocabulary} cannot be; choose {least} to 65536 tokens")
    be_quiet()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def to_text(tokenizer: "Tokenizer", tokens: Sequence[int]) -> str:
    """The text of `tokens` up to the first END."""
    ids = list(tokens)
    ids = ids[: ids.index(END)] if END in ids else ids
    return tokenizer.decode(ids).strip()


def encode(
    tokenizer: "Tokenizer", articles: Sequence[Article], *, article_tokens: int, summary_tokens: int
) -> Encoded:
    """`articles` as tokens, each text cut after so many; END is among them."""
    return Encoded(
        padded([tokenizer.encode(each.text).ids for each in articles], article_tokens),
        padded([tokenizer.encode(each.summary).ids for each in articles], summary_tokens),
    )


def padded(rows: Sequence[Sequence[int]], limit: int) -> Tokens:
    """`rows`, each cut to `limit` tokens END included, as an array as wide as the longest of them."""
    if limit < 2:
        raise ValueError(f"{limit} tokens leave no room for a text; allow at least 2")
    width = min(limit, max((len(row) + 1 for row in rows), default=1))
    table = np.full((len(rows), width), PAD, np.uint16)
    for line, row in zip(table, rows, strict=True):
        cut = [*row[: width - 1], END]
        line[: len(cut)] = cut
    return table


def encode_cached(
    tokenizer: "Tokenizer", articles: Sequence[Article], *, article_tokens: int, summary_tokens: int
) -> Encoded:
    """The same as `encode`, made once per machine: one process encodes and the others read its file.

    The file is named after its content: other articles, another tokenizer or other limits make another file.
    """
    folder = writable_folder()
    if folder is None:
        return encode(tokenizer, articles, article_tokens=article_tokens, summary_tokens=summary_tokens)
    recipe = fingerprint(tokenizer, articles, article_tokens, summary_tokens)
    path = folder / "cache" / f"tokens-{recipe[:16]}.npz"
    with machine_lock(folder, TIMEOUT):
        arrays = read_cache(path, recipe)
        if arrays is None:
            made = encode(tokenizer, articles, article_tokens=article_tokens, summary_tokens=summary_tokens)
            arrays = {"articles": made.articles, "summaries": made.summaries}
            write_cache(path, recipe, arrays)
    return Encoded(arrays["articles"], arrays["summaries"])


def fingerprint(
    tokenizer: "Tokenizer", articles: Sequence[Article], article_tokens: int, summary_tokens: int
) -> str:
    """A digest of everything that the encoded articles depend on."""
    digest = hashlib.sha256(f"{article_tokens} {summary_tokens} {tokenizer.to_str()}".encode())
    for article in articles:
        for text in (article.text, article.summary):
            digest.update(len(text.encode()).to_bytes(8, "big") + text.encode())
    return digest.hexdigest()
