"""The T5: what its decoder reads, the loss over tokens, and decoding."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from course_lib.data.generated_news import make_news
from course_lib.training.summaries.decode import summarize, write
from course_lib.training.summaries.model import (
    IGNORED,
    Shape,
    TokenBatch,
    build_t5,
    shifted_right,
    summed_cross_entropy,
    summed_loss,
    token_batch,
)
from course_lib.training.summaries.tokens import END, PAD, encode, train_tokenizer

NEWS = make_news(12, seed=0)
TINY = Shape(vocabulary=320, width=16, heads=2, inner=16, encoder_layers=1, decoder_layers=1)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((f"{each.text} {each.summary}" for each in NEWS), TINY.vocabulary)


@pytest.fixture(scope="module")
def reading(tokenizer):
    return encode(tokenizer, NEWS, article_tokens=120, summary_tokens=40)


@pytest.fixture(scope="module")
def model():
    return build_t5(TINY, seed=0).double()


def batch_of(reading, *indices: int) -> TokenBatch:
    return token_batch(reading, np.array(indices, np.int64))


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    one, two, other = build_t5(TINY, seed=1), build_t5(TINY, seed=1), build_t5(TINY, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    weights = [torch.cat([p.flatten() for p in each.parameters()]) for each in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_decoder_reads_the_labels_one_position_later() -> None:
    labels = torch.tensor([[5, 6, END, IGNORED], [7, END, IGNORED, IGNORED]])
    given = labels.clone()
    assert shifted_right(labels).tolist() == [[PAD, 5, 6, END], [PAD, 7, END, PAD]]
    assert torch.equal(labels, given)


def test_it_reads_what_transformers_would_give_it(model, reading) -> None:
    labels = batch_of(reading, 0, 1, 2).labels
    assert torch.equal(shifted_right(labels), model._shift_right(labels))


def test_the_loss_is_that_of_transformers_over_tokens(model, reading) -> None:
    batch = batch_of(reading, 0, 3, 5)
    mean = model(input_ids=batch.articles, attention_mask=batch.mask, labels=batch.labels).loss
    assert summed_loss(model, batch).item() == pytest.approx(mean.item() * batch.tokens, abs=1e-9)


def test_smoothing_mixes_each_label_with_all_tokens() -> None:
    generator = torch.manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[1, 2, IGNORED], [3, IGNORED, IGNORED]])
    logs = F.log_softmax(logits, dim=-1)
    expected = sum(
        -(0.9 * logs[row, place, labels[row, place]] + 0.1 * logs[row, place].mean())
        for row, place in ((0, 0), (0, 1), (1, 0))
    )
    assert summed_cross_entropy(logits, labels, smoothing=0.1).item() == pytest.approx(
        expected.item(), abs=1e-12
    )


def test_padding_changes_no_loss(model, reading) -> None:
    """An article alone, and beside a longer one: the same sum."""
    together = summed_loss(model, batch_of(reading, 0, 3)).item()
    apart = sum(summed_loss(model, batch_of(reading, each)).item() for each in (0, 3))
    assert together == pytest.approx(apart, abs=1e-9)


def test_known_wrong_a_decoder_that_reads_its_labels_knows_the_answer(model, reading) -> None:
    """Without the shift, the logits at a position change with the very token they are to predict."""
    batch = batch_of(reading, 0)
    other = batch.labels.clone()
    other[0, 4] = (other[0, 4] + 1) % 300 + 2

    def at_4(labels: torch.Tensor) -> torch.Tensor:
        outputs = model(input_ids=batch.articles, attention_mask=batch.mask, decoder_input_ids=labels)
        return outputs.logits[0, 4]

    assert torch.allclose(at_4(shifted_right(batch.labels)), at_4(shifted_right(other)), atol=1e-12)
    assert not torch.allclose(at_4(batch.labels), at_4(other), atol=1e-6)


def test_a_batch_may_be_empty_and_has_no_tokens(reading) -> None:
    empty = batch_of(reading)
    assert empty.tokens == 0 and len(empty.labels) == 0


def test_greedy_decoding_takes_the_best_token_each_time(model, reading) -> None:
    batch = batch_of(reading, 0, 1)
    written = write(model, batch, longest=6)
    for row, tokens in enumerate(written):
        read = torch.tensor([[PAD]])
        for token in tokens:
            mask = batch.mask[row : row + 1]
            logits = model(
                input_ids=batch.articles[row : row + 1], attention_mask=mask, decoder_input_ids=read
            ).logits
            assert token == logits[0, -1].argmax().item()
            read = torch.cat([read, torch.tensor([[token]])], dim=1)
            if token == END:
                break


def log_probability(model, batch: TokenBatch, tokens: list[int]) -> float:
    tokens = tokens[: tokens.index(END) + 1] if END in tokens else tokens
    labels = torch.tensor([tokens])
    return -summed_loss(model, TokenBatch(batch.articles, batch.mask, labels)).item()


def test_beam_search_finds_what_is_at_least_as_probable_as_greedy(reading) -> None:
    better = 0
    for seed in range(4):
        model = build_t5(TINY, seed=seed).double()
        with torch.no_grad():
            model.shared.weight.mul_(0.3)  # less certain of itself: greedy is rarely best
        batch = batch_of(reading, seed)
        greedy, beam = (write(model, batch, longest=5, beams=beams)[0] for beams in (1, 8))
        difference = log_probability(model, batch, beam) - log_probability(model, batch, greedy)
        assert difference > -1e-9
        better += difference > 1e-6
    assert better > 0


def test_summaries_are_written_in_pieces_and_in_order(model, tokenizer, reading, monkeypatch) -> None:
    whole = summarize(model, tokenizer, reading, range(7), longest=5)
    monkeypatch.setattr("course_lib.training.summaries.decode.DECODED_TOGETHER", 3)
    assert summarize(model, tokenizer, reading, range(7), longest=5) == whole
    assert summarize(model, tokenizer, reading, [], longest=5) == []
    assert model.training is False or model.training is True


def test_decoding_leaves_the_mode_as_it_was(model, reading) -> None:
    model.train()
    write(model, batch_of(reading, 0), longest=2)
    assert model.training


def test_the_libraries_say_nothing_and_stay_offline() -> None:
    program = (
        "import os\n"
        "from course_lib.training.summaries.model import Shape, build_t5\n"
        "from course_lib.training.summaries.tokens import train_tokenizer\n"
        "tokenizer = train_tokenizer(['a mill'] * 5, 270)\n"
        "build_t5(Shape(270, 16, 2, 16, 1, 1), seed=0)\n"
        "if os.fork() == 0:\n"
        "    tokenizer.encode_batch(['a', 'b']); os._exit(0)\n"
        "os.wait()\n"
        "from huggingface_hub import constants\n"
        "assert constants.HF_HUB_OFFLINE\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_the_package_imports_no_library() -> None:
    program = (
        "import sys, course_lib.training.summaries.checkpoint, course_lib.training.summaries.scores\n"
        "assert not {'transformers', 'tokenizers', 'rouge_score', 'safetensors'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
