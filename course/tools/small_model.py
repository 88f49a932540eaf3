"""Train the small language model that stands in for SmolLM2 in lesson 13: python -m course.tools.small_model.

A Llama of 0.1 million parameters reads generated news with their summaries, and nothing else. Its tokenizer
is kept. The same seed gives the same model up to rounding; some minutes on one core.
"""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from course.paths import NOTEBOOKS
from course.tools.generated_news import make_news
from course_lib.data.cnn_dailymail import Article

FOLDER = NOTEBOOKS / "code" / "data" / "small_model"
REQUEST = "Summarize this article in one sentence.\n\n"
STEPS, BATCH, RATE = 1000, 8, 4e-3


def small_model(words: int, end: int) -> LlamaForCausalLM:
    """An untrained model of `words` tokens, of which `end` ends a text."""
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ids: dict[str, Any] = {"vocab_size": words, "bos_token_id": None, "eos_token_id": end, "pad_token_id": 0}
    return LlamaForCausalLM(
        LlamaConfig(**size, **ids, tie_word_embeddings=True, max_position_embeddings=1024)
    )


def tokens(tokenizer: Any, article: Article) -> torch.Tensor:
    """Request, article and summary in one row."""
    chat = [{"role": "user", "content": REQUEST + article.text}]
    read = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return torch.tensor(read + tokenizer(article.summary + tokenizer.eos_token).input_ids)


def main() -> None:
    torch.set_num_threads(1)
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
    model = small_model(len(tokenizer), tokenizer.eos_token_id)
    texts = [tokens(tokenizer, article) for article in make_news(STEPS * BATCH, seed=0)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        batch = pad_sequence(texts[step * BATCH : (step + 1) * BATCH], batch_first=True)
        loss = model(input_ids=batch, labels=batch.masked_fill(batch == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.2f}", flush=True)
    model.half().save_pretrained(FOLDER)


if __name__ == "__main__":
    main()
