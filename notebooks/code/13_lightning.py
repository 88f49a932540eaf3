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
