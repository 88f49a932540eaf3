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
        counts = [(each["labels"] != -100).sum().item() for each in mine]
        pairs = zip(ours.factors(ours.comm, counts), mine)
        part = sum(factor * self.model(**each).loss for factor, each in pairs)
        self.losses.append(ours.comm.allreduce(part.item()))
        return part * ours.comm.size

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=ours.rate)


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
