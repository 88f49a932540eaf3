"""A language model summarizes data/news.json and learns from it; the data lie beside this file.

Start it with one of these:

    mpiexec -n 4 python code/13_summarize.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/13_summarize.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/13_summarize.py"     under Slurm
"""

# %%
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


# %%
def free_memory() -> int:
    """Bytes that programs can still have; where the system does not say it, all of its memory."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# %%
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


# %%
def claims(text: str, article: str) -> set[str]:
    """The names and numbers in `text`: no words that the article has in lower case, too."""
    ordinary = set(re.findall(r"\b[a-z]+\b", article))
    found = re.findall(r"\b(?:[A-Z]\w+|\d+)\b", text)
    return {word for word in found if word.lower() not in ordinary}


# %%
def fact_scores(text: str, article: str, facts: Sequence[str]) -> tuple[float, float]:
    """Precision and recall of the facts in a summary, each from 0 to 1.

    Precision: how many of its names and numbers the article has, too; 1 if it states none. Recall: how many
    of `facts` it states.
    """
    stated = claims(text, article)
    right = stated & set(re.findall(r"\w+", article))
    precision = len(right) / len(stated) if stated else 1.0
    return precision, sum(fact in text for fact in facts) / len(facts)


# %%
def encode(article, target="summary"):
    """What the model reads, and labels: the tokens to predict, or -100 where none counts."""
    read, wanted = prompt(article), tokenizer(article[target] + tokenizer.eos_token).input_ids
    if config.is_encoder_decoder:
        return {"input_ids": torch.tensor([read]), "labels": torch.tensor([wanted])}
    return {"input_ids": torch.tensor([read + wanted]), "labels": torch.tensor([[-100] * len(read) + wanted])}


def tokens(batch):
    """How many labels count."""
    return int((batch["labels"] != -100).sum())


# %%
# The course's solution of exercise 13.4: yours takes its place when it is right.
def weights(comm, counts):
    """By what to multiply the mean loss of each of this rank's micro-batches, which have so many tokens.

    The products of all ranks add up to the mean loss over all tokens.
    """
    everyone = comm.allreduce(sum(counts))
    return [count / everyone for count in counts]


# %%
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


# %%
def rouge_1(text: str, reference: str) -> float:
    """The F1 of the words in common, from 0 to 1; case and punctuation do not count."""
    ours, theirs = (Counter(re.findall(r"[a-z0-9]+", each.lower())) for each in (text, reference))
    common = (ours & theirs).total()  # a repeated word counts as often as both have it
    return 2 * common / max(1, ours.total() + theirs.total())


# %%
if __name__ == "__main__":
    start_deepspeed()
    model = load()
    losses = train(model)
    if comm.rank == 0:
        print(f"ranks: {comm.size}, losses", *(f"{loss:.3f}" for loss in losses))
        print(write(model, unseen[0]))
    torch.distributed.destroy_process_group()
