"""Train a model to summarize data/news.json.

mpiexec -n 4 python code/13_summarize.py
deepspeed --num_gpus 4 code/13_summarize.py
"""

# %%
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


# %%
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


# %%
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


# %%
# The course's solution of exercise 13.4: yours takes its place when it is right.
def factors(comm, counts):
    """Return one factor for each of this rank's micro-batches; `counts` are their numbers of tokens.

    Each mean loss times its factor, summed over all ranks, gives the mean over all tokens.
    """
    total = comm.allreduce(sum(counts))
    return [count / total for count in counts]


# %%
def encode(article):
    read, text = prompt(article), tokenizer(article["summary"] + tokenizer.eos_token).input_ids
    return {"input_ids": torch.tensor([read + text]), "labels": torch.tensor([[-100] * len(read) + text])}


# %%
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


# %%
if __name__ == "__main__":
    losses = list(train(model := load()))
    if comm.rank == 0:
        print("losses", *(f"{loss:.3f}" for loss in losses), "\n →", write(model, unseen[2]))
