"""Recipes, checkpoints, and weights of others."""

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course_lib.data.generated_news import Article, make_news
from course_lib.data.storage import DataError
from course_lib.training.summaries import pretrained
from course_lib.training.summaries.checkpoint import (
    SHIPPED,
    WEIGHTS,
    load_checkpoint,
    save_checkpoint,
)
from course_lib.training.summaries.model import Shape, build_t5
from course_lib.training.summaries.recipe import Recipe, excerpt, make_tokenizer, phase_articles
from course_lib.training.summaries.rouge import facts_found, sentences

SHAPE = Shape(vocabulary=300, width=16, heads=2, inner=16, encoder_layers=1, decoder_layers=1)
RECIPE = Recipe(shape=SHAPE, batch=4, excerpt_steps=3, last_steps=1)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(RECIPE)


# -------------------------------------------------------------------- recipes


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_an_excerpt_states_all_facts_with_little_around_them(extra: int) -> None:
    rng = random.Random(0)
    for article in make_news(50, seed=0):
        short = excerpt(article, extra, rng)
        assert short.text in article.text
        assert facts_found(short.text, article.facts) == list(article.facts)
        assert len(sentences(short.text)) <= 2 + extra
        assert (short.summary, short.facts) == (article.summary, article.facts)


def test_an_article_that_does_not_state_its_facts_has_no_excerpt() -> None:
    with pytest.raises(ValueError, match="does not state its facts"):
        excerpt(Article("It rained.", "Ivo ran.", ("Ivo",)), 1, random.Random(0))


def test_phases_read_other_articles_and_the_first_steps_are_the_same() -> None:
    last, excerpts = phase_articles(RECIPE, "last"), phase_articles(RECIPE, "excerpts")
    assert (len(last), len(excerpts)) == (4, 12)
    assert not {each.summary for each in last} & {each.summary for each in excerpts}
    assert last == make_news(4, seed=2)
    assert phase_articles(RECIPE, "excerpts", steps=2) == phase_articles(RECIPE, "excerpts")[:8]


def test_excerpts_grow() -> None:
    grown = phase_articles(replace(RECIPE, growth=1, excerpt_steps=6), "excerpts")
    lengths = [sum(len(sentences(each.text)) for each in grown[start : start + 4]) for start in (0, 20)]
    assert lengths[0] < lengths[1]


# -------------------------------------------------------------------- checkpoints


def test_what_was_saved_is_loaded_in_16_bits(tokenizer, tmp_path: Path) -> None:
    model = build_t5(SHAPE, seed=3)
    save_checkpoint(tmp_path, model, tokenizer, RECIPE, step=5)
    loaded, other, recipe, step = load_checkpoint(tmp_path)
    assert (recipe, step, other.to_str()) == (RECIPE, 5, tokenizer.to_str())
    pairs = list(zip(model.named_parameters(), loaded.named_parameters(), strict=True))
    assert pairs and all(torch.equal(a.half().float(), b) for (_, a), (_, b) in pairs)
    assert all(name == other for (name, _), (other, _) in pairs)
    assert loaded.lm_head.weight is loaded.shared.weight
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors",
        "recipe.json",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "recipe.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_checkpoint_is_a_sentence(tokenizer, tmp_path: Path, file: str, damage: str) -> None:
    save_checkpoint(tmp_path, build_t5(SHAPE, seed=0), tokenizer, RECIPE, step=5)
    path = tmp_path / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="holds no summarizer that can be read"):
        load_checkpoint(tmp_path)


def test_weights_of_one_number_are_not_spread_over_a_parameter(tokenizer, tmp_path: Path) -> None:
    from safetensors.torch import load, save

    save_checkpoint(tmp_path, build_t5(SHAPE, seed=0), tokenizer, RECIPE, step=5)
    weights = {name: value.reshape(-1)[:1] for name, value in load((tmp_path / WEIGHTS).read_bytes()).items()}
    (tmp_path / WEIGHTS).write_bytes(save({name: value.clone() for name, value in weights.items()}))
    with pytest.raises(DataError, match=r"can be read \(ValueError: .* has the shape"):
        load_checkpoint(tmp_path)


def test_weights_of_another_shape_are_refused(tokenizer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, build_t5(SHAPE, seed=0), tokenizer, RECIPE, step=5)
    told = json.loads((tmp_path / "recipe.json").read_text())
    told["shape"]["width"] = 32
    (tmp_path / "recipe.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="holds no summarizer"):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the checkpoint is not here")
def test_the_shipped_checkpoint_is_small_whole_and_of_the_recipe() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 6e6
    model, tokenizer, recipe, step = load_checkpoint()
    default = Recipe()
    assert step == recipe.excerpt_steps
    assert tokenizer.get_vocab_size() == recipe.shape.vocabulary
    assert recipe.last_steps == default.last_steps == 100
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_write_that_fails_leaves_the_old_weights(tokenizer, tmp_path: Path, monkeypatch) -> None:
    save_checkpoint(tmp_path, build_t5(SHAPE, seed=0), tokenizer, RECIPE, step=5)
    before = (tmp_path / WEIGHTS).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("course_lib.training.summaries.checkpoint.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, build_t5(SHAPE, seed=1), tokenizer, RECIPE, step=6)
    assert (tmp_path / WEIGHTS).read_bytes() == before


# -------------------------------------------------------------------- weights of others


def save_like_the_hub(model, tokenizer, folder: Path) -> None:
    """The files that the hub has of a model: config.json, model.safetensors, tokenizer.json, …"""
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")
    words.save_pretrained(folder)


def tiny_bart():
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    inner = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": SHAPE.vocabulary}
    marks = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1}
    return BartForConditionalGeneration(
        BartConfig(**sizes, **heads, **inner, **marks, forced_eos_token_id=1)
    ).eval()


@pytest.mark.parametrize("kind", ("t5", "bart"))
def test_pretrained_weights_come_from_a_folder_and_write(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pretrained, "download", lambda *_: pytest.fail("asked the network"))
    model = build_t5(SHAPE, seed=0) if kind == "t5" else tiny_bart()
    save_like_the_hub(model, tokenizer, tmp_path)
    loaded, words = pretrained.load_pretrained(str(tmp_path))
    assert loaded.config.model_type == kind
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert words("a mill")["input_ids"] == tokenizer.encode("a mill").ids
    texts = ["Ana Korkov opened a mill. " * 100, "It rained."]
    written = pretrained.write_summaries(loaded, words, texts, longest=5)
    assert len(written) == 2 and all(isinstance(text, str) for text in written)
    assert pretrained.write_summaries(loaded, words, texts[1:], longest=5) == written[1:]
    assert pretrained.write_summaries(loaded, words, [], longest=5) == []


def test_a_t5_reads_its_prefix_and_as_much_as_it_can(tokenizer, tmp_path: Path) -> None:
    save_like_the_hub(build_t5(SHAPE, seed=0), tokenizer, tmp_path)
    model, words = pretrained.load_pretrained(str(tmp_path))
    read = []

    def generate(input_ids, **_):
        read.append(words.decode(input_ids[0]))
        return input_ids

    model.generate = generate
    pretrained.write_summaries(model, words, ["a mill", "a mill " * 600])
    assert read[0].strip() == "summarize: a mill"
    assert len(words(read[1])["input_ids"]) <= pretrained.LONGEST + 1


def test_a_folder_that_is_missing_is_said_so_without_asking_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pretrained, "download", lambda *_: pytest.fail("asked the network"))
    for name in (str(tmp_path / "none"), "./none", "models/of/ours", "~/no-such-folder"):
        with pytest.raises(DataError, match=r"there is no folder .*; name one with config.json, model.safet"):
            pretrained.load_pretrained(name)


@pytest.mark.parametrize("wrong", ("empty", "decoder", "damaged", "pickle", "other weights", "no tokenizer"))
def test_a_folder_of_something_else_is_refused_and_never_asked_to_be_deleted(
    tokenizer, tmp_path: Path, wrong: str
) -> None:
    from safetensors.torch import save_file
    from transformers import GPT2Config, GPT2LMHeadModel

    weights = tmp_path / "model.safetensors"
    if wrong == "decoder":
        GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    elif wrong == "no tokenizer":
        build_t5(SHAPE, seed=0).save_pretrained(tmp_path)
    elif wrong != "empty":
        save_like_the_hub(build_t5(SHAPE, seed=0), tokenizer, tmp_path)
    if wrong == "damaged":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif wrong == "pickle":
        weights.unlink()
        torch.save(build_t5(SHAPE, seed=0).state_dict(), tmp_path / "pytorch_model.bin")
    elif wrong == "other weights":
        save_file({"another": torch.zeros(3)}, weights, metadata={"format": "pt"})
    with pytest.raises(DataError, match="holds no T5 or BART that can be read") as refused:
        pretrained.load_pretrained(str(tmp_path))
    assert "name a folder with config.json" in str(refused.value) and "delete" not in str(refused.value)


def test_without_a_network_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    with pytest.raises(DataError, match="no-such/model is not on this machine, and COURSE_OFFLINE=1"):
        pretrained.load_pretrained("no-such/model")


def test_a_slow_network_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: object, timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired("download", timeout)

    monkeypatch.delenv("COURSE_OFFLINE", raising=False)
    monkeypatch.setattr(pretrained.subprocess, "run", slow)
    with pytest.raises(DataError, match="downloading t5-small took longer than 3 s; try again"):
        pretrained.download("t5-small", 3.0)


def test_a_download_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_OFFLINE", raising=False)
    monkeypatch.setattr(pretrained, "DOWNLOAD", "raise SystemExit('no route to host')")
    with pytest.raises(DataError, match=r"t5-small could not be downloaded \(no route to host\)"):
        pretrained.download("t5-small", 20.0)
