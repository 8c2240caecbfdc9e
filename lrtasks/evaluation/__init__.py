"""The evaluation loop for every task and model: train, score, compare with baselines, record."""
