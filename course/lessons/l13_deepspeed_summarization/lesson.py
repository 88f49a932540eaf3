# %% [markdown]
# # 13 · DeepSpeed summarization
#
# *Train a model that summarizes news for its last 100 steps, and find out whether what it writes is true.*
#
# | | |
# |---|---|
# | **You will be able to** | score a summary by its words and by its facts, beside two baselines that learn nothing; divide a loss over tokens so that the ranks' parts add up to it; continue the training of an encoder-decoder with DeepSpeed, and say what its decoder reads |
# | **Before this** | [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb), [11 · ZeRO from scratch](11_zero_from_scratch.ipynb) |
# | **Time** | core 20 min · more 30 min |
# | **Ranks** | 4 |
#
# [← 12 · DeepSpeed on CIFAR](12_deepspeed_on_cifar.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. The gradients of which loss add up to those of the batch: of a shard's mean, or of its sum divided by the global batch?
#    <details><summary>Answer</summary>Of its sum, divided by the global batch. Means of unequal shards do not add up.</details>
# 2. What does a rank keep with ZeRO stage 2, besides all weights?
#    <details><summary>Answer</summary>Its slice of the gradients and its slice of the optimizer's state.</details>
# 3. Where do you set DeepSpeed's stage?
#    <details><summary>Answer</summary>In its config, a JSON file or a dictionary, under <code>zero_optimization</code>.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
torch.set_num_threads(1)

# %% [markdown]
# ## 1 · What is new?
#
# An article reports several events, and one of them is the news. A summary says who did what, where and when: four
# **facts**. These articles are generated, so that the facts are known. The simplest summary of all is **lead-3**, the
# first three sentences:

# %% tags=["nbval-ignore-output"]
from course.lessons.l13_deepspeed_summarization.figures import (
    explain_facts,
    explain_training,
    marked_article,
    score_bars,
)
from course_lib.data.generated_news import make_news
from course_lib.training.summaries.rouge import lead_3

held_out = make_news(80, seed=0, split="held_out")
article = held_out[0]
marked_article(article, {"reference": article.summary, "lead-3": lead_3(article.text)})

# %% [markdown]
# Good reporters put the news first; these bury it. **ROUGE-1** counts the words that a summary and the reference have in
# common, as F1 of precision and recall.
#
# ## 2 · A model that writes well
#
# The model is a small T5. Its **encoder** reads the article, its **decoder** writes the summary, one token after the other;
# a token is a word, or a piece of one. It was trained until 100 steps before the end, and saved. Each rank summarizes a
# quarter of the held-out articles:

# %%
# %%px --timeout 120
from course.lessons.l13_deepspeed_summarization.summaries import summarize_together
from course_lib.data.generated_news import make_news
from course_lib.training.summaries.checkpoint import load_checkpoint
from course_lib.training.summaries.recipe import encoded

model, tokenizer, recipe, step = load_checkpoint()
held_out = make_news(80, seed=0, split="held_out")
reading = encoded(recipe, tokenizer, held_out)
before = summarize_together(comm, model, tokenizer, reading, longest=recipe.summary_tokens)

# %% tags=["nbval-ignore-output"]
from course_lib.training.summaries.scores import score

first = score(cluster["before"][0], held_out)
print(cluster["before"][0][0])
print(f"ROUGE-1 {100 * first.rouge.one:.0f} percent")

# %% [markdown]
# None of the full names in these articles was in its training, and it writes in the style of the references. How many of their facts
# does it state?

# %%
predict("Percent of the facts right, before the last 100 steps?", None)

# %% tags=["nbval-ignore-output"]
because = explain_facts(first.rouge, first.facts)
outcome("Percent of the facts right, before the last 100 steps?", 100 * first.facts, "%", because=because)

# %% [markdown]
# ## 3 · A loss over tokens
#
# In training, the decoder predicts each token of the reference, and the loss is the mean **over tokens**. But summaries have
# different lengths: ranks with eight articles each do not have equally many tokens.

# %%
# %%px
from course_lib.parallel.data_parallel import shard
from course_lib.training.summaries.model import token_batch
from course_lib.training.summaries.recipe import phase_articles

training = encoded(recipe, tokenizer, phase_articles(recipe, "last"))
batch = token_batch(training, shard(comm, np.arange(recipe.batch)))
print(f"rank {rank}: {len(batch.labels)} summaries, {batch.tokens} tokens")

# %% [markdown]
# Take the mean of the ranks' means, and a token of a rank that has few counts for more. So divide each rank's *sum* by the
# tokens of **all** ranks.

# %% tags=["exercise: 13.1"]

# %% [markdown]
# ## 4 · The last 100 steps
#
# The library's `token_share` does the same in PyTorch. DeepSpeed brings the engine; ZeRO stage 2 comes from its config. It
# *averages* gradients over ranks, and ours have to be added: hence the `comm.size`.

# %% tags=["source: course.lessons.l13_deepspeed_summarization.summaries:summary_step"]
# %%px

# %% [markdown]
# Each of the 100 steps reads 32 new articles, eight on each rank, while the learning rate falls to 0. How many facts will be
# right then?

# %%
predict("Percent of the facts right, after them?", None)

# %%
# %%px --timeout 300
from course.lessons.l13_deepspeed_summarization.summaries import global_batches
from course.lessons.l13_deepspeed_summarization.summary_training import phase_config
from course_lib.parallel.deepspeed_engine import end_engine, start_deepspeed, start_engine

start_deepspeed(comm)
engine = start_engine(model, phase_config(recipe, "last", size))
batches = global_batches(len(training), recipe.batch)
for indices in batches:
    summary_step(comm, engine, token_batch(training, shard(comm, indices)), recipe.smoothing)
end_engine(engine)
after = summarize_together(comm, model, tokenizer, reading, longest=recipe.summary_tokens)

# %% tags=["nbval-ignore-output"]
last = score(cluster["after"][0], held_out)
why = explain_training(first.facts, last.facts)
outcome("Percent of the facts right, after them?", 100 * last.facts, "%", because=why)
marked_article(article, {"before": cluster["before"][0][0], "after": cluster["after"][0][0]})

# %% [markdown]
# And for all 80 articles, beside lead-3 and the **oracle extract**: the sentences that score best, chosen by somebody who knows
# the reference.

# %% tags=["nbval-ignore-output"]
from course_lib.training.summaries.scores import score_baselines

scores = score_baselines(held_out) | {"before": first, "after": last}
score_bars({name: (each.rouge, each.facts) for name, each in scores.items()})

# %% [markdown]
# ROUGE rewards the style. Whether a summary is *true*, you have to check for yourself.

# %% tags=["exercise: 13.q2"]

# %% [markdown]
# ## Key points
#
# - ROUGE counts words in common. Facts need a count of their own.
# - Lead-3 and the oracle extract say what a score is worth, before anything is trained.
# - A loss over tokens is a sum, divided by the tokens of *all* ranks. The mean of the ranks' means is another loss.
# - The decoder reads the labels one position later, and padding (−100) counts nowhere.
# - One config, three drivers: our loop, the Trainer of Hugging Face, Lightning.

# %% [markdown]
# ## Discuss
#
# A newsroom wants to publish the summaries of your model, ROUGE-1 0.9, without an editor. Vote, talk to your neighbour for two
# minutes, vote again: (a) yes, 0.9 is excellent, (b) only if the facts are checked by hand, (c) never.
#
# <details><summary>What to listen for</summary>(b), and how: ROUGE compares with a reference, which new articles do not have.
# Somebody has to ask of each name, place and day whether the article says so. Counting facts automatically works here only
# because the generator knows them.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 13.q1"]

# %% tags=["exercise: 13.q3"]

# %% [markdown]
# ### What the decoder reads
#
# To predict a token, the decoder reads those before it: the labels, one position later. This function forgets that. Training
# would go very well.

# %% tags=["exercise: 13.2"]

# %% [markdown]
# Here it is in PyTorch, with the loss. *Label smoothing* takes a tenth of each label and spreads it over the whole vocabulary:
# the model is kept from being too sure of itself.

# %% tags=["source: course_lib.training.summaries.model:shifted_right"]
# %%px

# %% tags=["source: course_lib.training.summaries.model:summed_loss"]
# %%px

# %%
# %%px
with torch.no_grad():
    mean = summed_loss(model, batch) / batch.tokens
print(f"rank {rank}: its loss is below that of a guess: {bool(mean < np.log(recipe.shape.vocabulary))}")

# %% [markdown]
# ### ROUGE by hand
#
# The package `rouge-score` counted for us. Its ROUGE-1 takes six lines; ROUGE-2 counts pairs of neighbours, and ROUGE-L the
# longest common subsequence.

# %% tags=["exercise: 13.3"]

# %% tags=["nbval-ignore-output"]
for name, each in scores.items():
    one, two, longest = 100 * each.rouge.one, 100 * each.rouge.two, 100 * each.rouge.l
    print(
        f"{name:15} ROUGE-1 {one:3.0f}   ROUGE-2 {two:3.0f}   ROUGE-L {longest:3.0f}   facts {100 * each.facts:3.0f}"
    )

# %% [markdown]
# ### Tokens
#
# The tokenizer was trained on 2000 articles. It begins with single bytes, and joins the most frequent pair again and again, so
# a common word becomes one token, and no text is unknown.

# %%
# %%px
if rank == 0:
    for text in (held_out[0].summary, "Summarization mit Umlauten: größer"):
        print(tokenizer.encode(text).tokens)

# %% [markdown]
# Articles are encoded once on a machine: a file in `data/cache`, named after its content, from which each rank takes its shard.
#
# ### Beam search
#
# **Greedy** decoding takes the most probable token each time. **Beam search** keeps several beginnings, and can take back a
# first word that led nowhere. Does it get more facts right?

# %%
# %%px --timeout 120
beam = summarize_together(comm, model, tokenizer, reading, longest=recipe.summary_tokens, beams=4)

# %% tags=["nbval-ignore-output"]
four = score(cluster["beam"][0], held_out)
print(f"greedy: facts {last.facts:.1%}, 4 beams: {four.facts:.1%}")
changed = sum(a != b for a, b in zip(cluster["after"][0], cluster["beam"][0], strict=True))
print(changed, "of", len(held_out), "summaries differ")

# %% [markdown]
# ### The Trainer of Hugging Face
#
# Most people do not write the loop of section 4. They hand model, data and **the same config** to a `Trainer`, which counts the
# tokens of all ranks, too. Do 20 steps of ours and of its end with the same weights?

# %%
# %%px --timeout 200
from course.lessons.l13_deepspeed_summarization.hf_trainer import train_with_trainer
from course.lessons.l13_deepspeed_summarization.summaries import train_summaries
from course_lib.parallel.deepspeed_engine import gathered_weights
from course_lib.training.flat import flatten

config = phase_config(recipe, "last", size, steps=20)
model, *_ = load_checkpoint()
engine = start_engine(model, config)
train_summaries(comm, engine, training, batches[:20], smoothing=recipe.smoothing)
ours = gathered_weights(engine)
end_engine(engine)

# %%
# %%px --timeout 200
model, *_ = load_checkpoint()
train_with_trainer(model, training, config, steps=20, smoothing=recipe.smoothing)
theirs = flatten([parameter.detach() for parameter in model.parameters()])
if rank == 0:
    print("the same weights, to 1e-5:", bool((ours - theirs).norm() < 1e-5 * ours.norm()))

# %% [markdown]
# **Lightning** takes the same dictionary: `Trainer(strategy=DeepSpeedStrategy(config=config), accelerator="gpu")`. It is not run
# here: its DeepSpeed strategy refuses any device but a GPU, so a laptop stops at that line, whatever the config says.
#
# ### From scratch
#
# The checkpoint was made by a program of the course, from random weights, on *excerpts*: the news with one sentence beside it,
# later with more. On whole articles alone, the same steps teach it next to nothing: a thing to copy is soon found among 20
# words, and hard to find among 100. On two cores it takes some minutes:
#
# ```
# .venv/bin/python -m mpi_classroom.launch 2 -m course.lessons.l13_deepspeed_summarization.summary_training
# ```
#
# It prints how long each phase took and both scores; `--save` writes the checkpoint.
#
# ### Another newspaper
#
# The next cell loads CNN/DailyMail where you have it (`course fetch` says how), and generated news otherwise. Its first
# line says which. In CNN/DailyMail editors wrote the references, and nobody marked the facts. What does lead-3 score where
# reporters put the news first?

# %% tags=["nbval-ignore-output"]
from course_lib.data.cnn_dailymail import load_news

news = load_news(train=0, validation=0, test=50)
print(news.source)
for name, each in score_baselines(news.test).items():
    print(f"{name:15} ROUGE-1 {100 * each.rouge.one:3.0f}   ROUGE-L {100 * each.rouge.l:3.0f}")

# %% [markdown]
# And our model? It was trained on generated articles. It has never seen a newspaper:

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
from course_lib.data.cnn_dailymail import load_news

real = load_news(train=0, validation=0, test=8).test
written = summarize_together(
    comm, model, tokenizer, encoded(recipe, tokenizer, real), longest=recipe.summary_tokens
)
if rank == 0:
    print("reference:", real[0].summary[:200])
    print("ours:     ", written[0])

# %% [markdown]
# On a real article it answers in the one form that it knows. To start from weights that have read more, `load_pretrained("t5-small")` in
# `course_lib.training.summaries.pretrained` fetches 240 MB, or says within seconds that it cannot.

# %% [markdown]
# ## On GPUs
#
# The same files run there: DeepSpeed then takes NCCL in place of MPI, and 16-bit weights (`"bf16": {"enabled": true}`). With
# models of billions of parameters, stages 2 and 3 decide whether training fits at all; here they only show how.

# %% [markdown]
# ## Pitfalls
#
# - The mean of the ranks' means: no error, and a training that is a little wrong.
# - DeepSpeed and DDP average gradients: a part of a sum needs the number of ranks as a factor.
# - A decoder that sees its labels: the loss falls to nothing, and the model cannot write.
# - Reporting the score on articles from the generator or newspaper that the model was trained on, as if it held for all.
# - `transformers` asks the network by default: `HF_HUB_OFFLINE=1`, which the course sets, forbids it.

# %% [markdown]
# ## References
#
# - C.-Y. Lin, [ROUGE](https://aclanthology.org/W04-1013/), 2004.
# - C. Raffel and others, [Exploring the limits of transfer learning](https://arxiv.org/abs/1910.10683), 2020: T5.
# - A. See and others, [Get to the point](https://arxiv.org/abs/1704.04368), 2017: CNN/DailyMail, lead-3 and copying.
# - J. Maynez and others, [On faithfulness and factuality in abstractive summarization](https://arxiv.org/abs/2005.00661), 2020.
# - S. Hu and others, [MiniCPM](https://arxiv.org/abs/2404.06395), 2024: a learning rate that stays, and falls at the end.
# - Hugging Face, [DeepSpeed](https://huggingface.co/docs/transformers/deepspeed); Lightning,
#   [DeepSpeed strategy](https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/deepspeed.html).

# %% [markdown]
# ## Stretch
#
# Train the last 100 steps with `mean_share` in place of `token_share`: `train_summaries(…, share=mean_share)`. How far do the
# losses move, and the facts? Then distribute the articles so that rank 0 gets the longest summaries, and look again.

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
