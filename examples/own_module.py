"""A layer of your own on a task of lrtasks: python own_module.py

From the shell: lrtasks eval --model own_module.py:Recurrent --task cumsum --length 64 --steps 200
"""

import torch

import lrtasks


class Recurrent(torch.nn.Module):
    """A mixer: maps (batch, length, d_model) to the same shape."""

    def __init__(self, d_model):
        super().__init__()
        self.rnn = torch.nn.GRU(d_model, d_model, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


if __name__ == "__main__":
    task = lrtasks.make("cumsum", length=64)
    lrtasks.check_model(Recurrent, input=task.input, target=task.target)
    record = lrtasks.evaluate(Recurrent, task, budget={"steps": 100, "eval_every": 50, "test_batches": 10})
    print(f"{task.name}: R² {record.scores['test']['r2']:.3f}, constant: R² {record.baselines['constant']['r2']:.3f}")
