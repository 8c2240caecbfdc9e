"""An own nn.Module on a task of lrtasks: python own_module.py"""

import torch

import lrtasks


class Recurrent(torch.nn.Module):
    def __init__(self, input, target, causal):
        super().__init__()
        self.rnn = torch.nn.GRU(input.width, 32, batch_first=True)
        self.out = torch.nn.Linear(32, target.width)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


task = lrtasks.make("cumsum", length=64)
lrtasks.check_model(Recurrent, input=task.input, target=task.target)
record = lrtasks.evaluate(Recurrent, task, budget={"steps": 200, "eval_every": 100, "test_batches": 10})
print(f"{task.name}: R² {record.scores['test']['r2']:.3f}, constant: R² {record.baselines['constant']['r2']:.3f}")
