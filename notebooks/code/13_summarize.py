"""A language model summarizes data/news.json and learns from it; the data lie beside this file.

Start it with one of these:

    mpiexec -n 4 python code/13_summarize.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/13_summarize.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/13_summarize.py"     under Slurm
"""

# %%
import json
import os
import socket
import warnings
from pathlib import Path

os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from mpi4py import MPI
from transformers import AutoModelForCausalLM, AutoTokenizer

warnings.simplefilter("ignore", FutureWarning)  # of DeepSpeed's calls
torch.set_num_threads(1)  # one thread per rank
comm = MPI.COMM_WORLD
data = Path(__file__).with_name("data")
articles = json.loads((data / "news.json").read_text())
news, unseen = articles[:48], articles[48:]  # to train on, to test with


# %%
fetched = Path(os.environ.get("SMOLLM2", Path.home() / ".cache/course_lib/smollm2"))
memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
folder = fetched if fetched.is_dir() and memory > 7e9 else data / "small_model"
tokenizer = AutoTokenizer.from_pretrained(folder)


def load():
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def prompt(article):
    request = "Summarize this article in one sentence.\n\n" + article["text"]
    chat = [{"role": "user", "content": request}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def write(model, article):
    read = torch.tensor([prompt(article)])
    ids = model.generate(read, attention_mask=read**0, max_new_tokens=40, do_sample=False)[0]
    return tokenizer.decode(ids[read.shape[1] :], skip_special_tokens=True).strip()


# %%
# The course's solution of exercise 13.4: yours takes its place when it is right.
def weights(comm, counts):
    """By what to multiply the mean loss of each of this rank's micro-batches, which have so many tokens.

    The products of all ranks add up to the mean loss over all tokens.
    """
    everyone = comm.allreduce(sum(counts))
    return [count / everyone for count in counts]


# %%
def encode(article):
    read, summary = prompt(article), tokenizer(article["summary"] + tokenizer.eos_token).input_ids
    labels = [-100] * len(read) + summary
    return {"input_ids": torch.tensor([read + summary]), "labels": torch.tensor([labels])}


# %%
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
            part = factor * engine(**inputs).loss
            engine.backward(batch * part)
            engine.step()  # updates after the last micro-batch
            losses[step] += part.item()
    return [comm.allreduce(loss) for loss in losses]


# %%
def start_deepspeed():
    """Make the ranks of `comm` DeepSpeed's world."""
    with socket.create_server(("", 0)) as free:
        place = comm.bcast(f"tcp://{socket.gethostname()}:{free.getsockname()[1]}")
    local = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")]
    os.environ.setdefault("LOCAL_RANK", local[0] or local[1] or "0")  # its GPU
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.ops.__compatible_ops__ = {}  # or it compiles C++ to find out
    world = {"init_method": place, "rank": comm.rank, "world_size": comm.size}
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, **world)


# %%
if __name__ == "__main__":
    start_deepspeed()
    losses = train(load())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, losses", *(f"{loss:.3f}" for loss in losses))
