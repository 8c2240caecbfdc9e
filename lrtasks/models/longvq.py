"""LongVQ: a moving average, and gated attention on it with quantised keys, in time linear in the sequence length.

Source: "LongVQ", section 4. The paper leaves many details open; docs/models/longvq.md lists each choice made here.

    X    input of the layer, (batch, length, d)       X'   Norm(X) if pre-norm, else X
    Z    dropout(SiLU(SSM(X')))
    V    SiLU(X' W_v + b_v)                           Q, K  linear maps of Z
    G_a  SiLU(Z W_g + b_g), gate of the attended values
    K̂    K quantised to the nearest of S codes        O_a  dropout((G_a ⊙ Attention(Q, K̂, V)) W_o + b_o)
    G_o  sigmoid(X' W_u + b_u), gate of the output
    Y    G_o ⊙ O_a + (1 - G_o) ⊙ X, normalised if post-norm

A feed-forward sub-layer follows each layer. Running averages move the codebook with the keys (section 4.3, and
Transformer-VQ, section 3.4; both from van den Oord et al., "Neural Discrete Representation Learning", appendix A.1):

    z_j    code of key j, arg-min_s ‖k_j - c_s‖²
    n_s    number of keys with code s in this batch, over all processes
    N, M   running averages: N_s ← η N_s + (1 - η) n_s,   M_s ← η M_s + (1 - η) Σ_{j: z_j = s} k_j
    c_s    centre M_s / max(N_s, 0.01)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import mega, registry
from lrtasks.models.base import ATOMIC, RECALL, NormedBlock, computed
from lrtasks.models.ops.layers import WEIGHT_STD, Portrait, at_least_float32, hide, linear, normal_, require_causal
from lrtasks.models.ops.positions import LocalBias
from lrtasks.models.ops.quantised_attention import KeyGradients, attend_quantised, join, sum_by_code
from lrtasks.models.ops.scoped_attention import AttentionFunction, Scope, attention_weights
from lrtasks.spec import Spec

DEFAULT_WINDOW = 128
FLOOR = 0.01  # smallest divisor of a centre; a code with a lower average count is dead: its centre is no longer a mean
WORKING = 2**24  # largest number of distances in memory at once, in elements
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Usage:
    """Statistics of the unpadded keys in the last forward pass: counts ``(S,)``, mean ‖k - c‖² and mean ‖k‖²."""

    counts: Tensor
    error: Tensor
    power: Tensor


class Codebook(nn.Module):
    """Quantiser of keys ``(batch, length, d_k)``.

    In training, each batch is first quantised with the current centres and then updates the averages. The first batch
    instead sets the centres to random keys of that batch, after it was quantised. So no output depends on a later key
    or on another row of its batch. Counts and sums are taken over all processes. Everything that changes is stored
    in buffers (float32 also under mixed precision), so that a checkpoint restores it. No gradient reaches the centres.

    There are ``size`` codes; ``commitment`` is the weight γ of the commitment loss, the mean over unpadded keys of
    ‖k - c‖² (summed over features); the centres are normal draws of standard deviation ``std`` in the first batch.
    """

    count: Tensor
    total: Tensor
    updates: Tensor
    usage: Usage | None = None

    def __init__(self, size: int, width: int, commitment: float = 1e-4, decay: float = 0.99, *, std: float) -> None:
        super().__init__()
        self.size, self.commitment, self.decay = size, commitment, decay
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", std * torch.randn(size, width))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._commitment: Tensor | None = None

    def centres(self) -> Tensor:
        """Return c, ``(S, d_k)``, as a new tensor, which later updates do not change."""
        return self.total / self.count.clamp_min(FLOOR).unsqueeze(1)

    @torch.no_grad()
    def assign(self, keys: Tensor, centres: Tensor) -> Tensor:
        """Return the codes of keys ``(..., d_k)``, ``(...)`` int64; among equally near codes, the lowest."""
        with torch.autocast(keys.device.type, enabled=False):
            parts = torch.split(keys.detach().to(centres.dtype).flatten(0, -2), max(1, WORKING // self.size))
            norms = centres.square().sum(1)
            codes = torch.cat([torch.addmm(norms, part, centres.T, alpha=-2).argmin(1) for part in parts])
        return codes.view(keys.shape[:-1])

    def forward(self, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Quantise the keys; in training also update the averages.

        Args:
            keys: ``(batch, length, d_k)``.
            mask: ``(batch, length)`` bool, False at padding, which statistics and losses ignore, or None.

        Returns:
            The codes z, ``(batch, length)`` int64; their centres, ``(batch, length, d_k)``, whose gradient goes
            straight through to the keys; and all centres, ``(S, d_k)``, as used for these keys, without gradient.
        """
        keys = at_least_float32(keys)
        centres = self.centres()
        codes = self.assign(keys, centres)
        chosen = centres.index_select(0, codes.flatten()).view_as(keys).to(keys.dtype)
        seen = hide(keys.detach(), mask).flatten(0, 1).to(self.total.dtype)
        weight = torch.ones_like(seen[:, 0]) if mask is None else mask.flatten().to(seen.dtype)
        number = weight.sum().clamp_min(1)
        error = hide(keys - chosen, mask).square().sum() / number
        self._commitment = error
        counts = torch.zeros_like(self.count).index_add_(0, codes.flatten(), weight)
        self.usage = Usage(counts, error.detach(), seen.square().sum() / number)
        if self.training and not self.updates:
            self._start(seen if mask is None else seen[mask.flatten()])
        elif self.training:
            self._update(seen, codes.flatten(), counts)
        return codes, chosen + (keys - keys.detach()), centres

    def extra_losses(self) -> dict[str, Tensor]:
        """Return γ times the commitment loss of the last forward pass."""
        return {} if self._commitment is None else {"commitment": self.commitment * self._commitment}

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Return numbers that describe the last forward pass and the averages.

        ``codebook_usage``: share of the codes that have keys; ``codebook_perplexity``: exp of the entropy of the codes;
        ``dead_codes``: codes whose average count is below 0.01; ``quantisation_error``: mean ‖k - c‖² over mean ‖k‖².
        """
        if self.usage is None:
            return {}
        counts = self.usage.counts.double()
        share = counts / counts.sum().clamp_min(1)
        return {
            "codebook_usage": float((counts > 0).double().mean()),
            "codebook_perplexity": float(torch.special.entr(share).sum().exp()),
            "dead_codes": float((self.count < FLOOR).sum()),
            "quantisation_error": float(self.usage.error / self.usage.power.clamp_min(torch.finfo(torch.float32).tiny)),
        }

    def portraits(self) -> list[Portrait]:
        """Return a figure of the share of keys per code in the last forward pass, sorted by share, largest first."""
        if self.usage is None:
            return []
        counts = self.usage.counts.double().sort(descending=True).values
        share = (counts / counts.sum().clamp_min(1)).cpu().numpy()
        every = max(1, self.size // 8)  # more labels would overlap
        labels = tuple("" if rank % every else str(rank) for rank in range(1, self.size + 1))
        return [Portrait("codebook usage", "bars", {"share of keys": share}, "code, by rank", "share", labels=labels)]

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the last loss from copies, because its autograd graph cannot be copied."""
        return {**self.__dict__, "_commitment": None}

    @torch.no_grad()
    def _start(self, keys: Tensor) -> None:
        """Set the centres to random keys ``(n, d_k)`` of the first process; if n < S, the rest stay normal draws."""
        if len(keys) < self.size:
            found = f"a codebook of {self.size} codes is larger than the {len(keys)} keys of a batch"
            warnings.warn(f"{found}: codes will stay empty", stacklevel=3)
        drawn = torch.randperm(len(keys), device=keys.device)[: self.size]
        self.total[: len(drawn)] = keys[drawn]
        self.updates += 1
        if _several_processes():
            dist.broadcast(self.total, 0)

    @torch.no_grad()
    def _update(self, keys: Tensor, codes: Tensor, counts: Tensor) -> None:
        """Update the averages with one batch: keys ``(n, d_k)``, zeros at padding; codes ``(n,)``; counts ``(S,)``."""
        sums = torch.zeros_like(self.total).index_add_(0, codes, keys)
        batch = torch.cat([counts.unsqueeze(1), sums], 1)
        if _several_processes():
            dist.all_reduce(batch)
        self.count.lerp_(batch[:, 0], 1 - self.decay)
        self.total.lerp_(batch[:, 1:], 1 - self.decay)
        self.updates += 1


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@dataclass
class State:
    """Streaming state of :class:`QuantisedAttention`.

    It holds the (quantised) keys of the previous and the current block, ``(batch, slots, d_k)``, their values, their
    codes ``(batch, slots)``, and, per code, the sum of the values and the count of the far keys, ``(batch, S, d_v +
    1)``. Without a codebook, there are no codes and sums. ``position`` is the position of the next input.
    """

    k: Tensor
    v: Tensor
    codes: Tensor | None
    sums: Tensor | None
    position: int


class QuantisedAttention(nn.Module):
    """Map queries and keys ``(batch, length, d_k)`` and values ``(batch, length, d_v)`` to the shape of the values.

    Scores are q·k̂/sqrt(d_k) + bias under a softmax, and q·k̂/n + bias under the other functions. n is the number of
    unpadded keys or, if causal, the query's position, counted from 1. With ``qk_norm``, queries and keys are
    x / sqrt(mean(x²) + 1e-6) d_k^(-1/4), and the softmax has no further scale. Without ``quantise``, the keys are used
    unquantised, at quadratic cost.

    ``length`` is the longest sequence; a longer window raises :class:`UsageError`.
    """

    def __init__(self, config: LongVQ, length: int, causal: bool) -> None:
        super().__init__()
        if config.window is not None and config.window > length:
            limit = f"the sequence length ({length})"
            raise UsageError(f"{config.name}: window must be none or at most {limit}, found {config.window}")
        window = config.window or min(DEFAULT_WINDOW, length)
        self.length, self.causal, self.qk_norm = length, causal, config.qk_norm
        self.d_k, self.d_v = config.d_k or max(1, config.d_model // 2), config.d_v or 2 * config.d_model
        self.softmax_scale = 1.0 if self.qk_norm else self.d_k**-0.5
        self.function: AttentionFunction = config.attention
        self.key_gradients: KeyGradients = config.key_gradients
        self.codebook: Codebook | None = None
        self.block = window if config.quantise else length
        if config.quantise:
            std, options = self.d_k**-0.25 if self.qk_norm else WEIGHT_STD, (config.commitment, config.decay)
            self.codebook = Codebook(config.codebook, self.d_k, *options, std=std)
        self.bias = LocalBias(window, causal) if config.local_bias else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k = self._normalised(q), self._normalised(k)
        codes = centres = None
        block = k.shape[1]
        if self.codebook is not None:
            codes, k, centres = self.codebook(k, mask)
            block = self.block
        scale: float | Tensor = self.softmax_scale
        if self.function != "softmax":
            divisor = Scope(self.causal).divisor(q.shape[1], mask, q.device)
            scale = 1 / torch.as_tensor(divisor).to(q.dtype)
        q, k = (q * scale).to(v.dtype), k.to(v.dtype)
        options: dict[str, Any] = {"function": self.function, "key_gradients": self.key_gradients, "bias": self.bias}
        return attend_quantised(q, k, v, codes, centres, block=block, causal=self.causal, valid=mask, **options)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return a state with two blocks of keys and values and sums per code, on the device of ``like``.

        Keys and values have the type of ``like``; the sums, which hold the numbers of keys, have at least float32.
        Without a codebook, the state holds as many keys as the longest sequence. Raises :class:`UsageError` if not
        causal.
        """
        require_causal(self.causal)
        slots, codes, sums = self.length, None, None
        if self.codebook is not None:
            slots = 2 * self.block
            codes = torch.zeros(batch, slots, dtype=torch.int64, device=like.device)
            sums = at_least_float32(like).new_zeros(batch, self.codebook.size, self.d_v + 1)
        return State(like.new_zeros(batch, slots, self.d_k), like.new_zeros(batch, slots, self.d_v), codes, sums, 0)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute one position, q, k ``(batch, d_k)``, v ``(batch, d_v)``; equals :meth:`forward` in evaluation mode.

        Raises:
            UsageError: without a codebook, beyond the length of the longest sequence.
        """
        if self.codebook is None and state.position >= self.length:
            raise UsageError(f"attention without a codebook was built for {self.length} positions, found one more")
        q, k = self._normalised(q), self._normalised(k)
        centres = code = None
        if self.codebook is not None:
            centres = self.codebook.centres()
            code = self.codebook.assign(k, centres)
            k = centres.index_select(0, code).to(k.dtype)
        state = self._pushed(state, k, v, code)
        slots = state.k.shape[1]
        position = state.position - 1
        # position of the first slot: the current block uses the last slots
        base = (position // self.block + 1) * self.block - slots
        place = base + torch.arange(slots, device=q.device)
        q = (q * (self.softmax_scale if self.function == "softmax" else 1 / state.position)).to(state.k.dtype)
        near = (state.k @ q.unsqueeze(2)).squeeze(2)
        near = near if self.bias is None else near + self.bias(place - position)
        near = near.masked_fill((place < 0) | (place > position), -torch.inf)
        if centres is None or state.sums is None:
            weights = attention_weights(at_least_float32(near), self.function)
            return (weights.to(v.dtype).unsqueeze(1) @ state.v).squeeze(1), state
        number, far = state.sums[..., self.d_v], q @ centres.to(q.dtype).T
        weights, far_weights = join(near, far, number, self.function)
        y = weights.to(v.dtype).unsqueeze(1) @ state.v
        y = y + far_weights.to(v.dtype).unsqueeze(1) @ state.sums[..., : self.d_v].to(v.dtype)
        return y.squeeze(1), state

    def _pushed(self, state: State, k: Tensor, v: Tensor, code: Tensor | None) -> State:
        """Store one key and value; at the start of a block, add the block before the previous one to the sums."""
        block, slots = self.block, state.k.shape[1]
        keys, values, codes, sums = state.k, state.v, state.codes, state.sums
        place = state.position % block
        if codes is not None and sums is not None and place == 0 and state.position:
            if state.position > block:
                content = F.pad(values[:, :block].to(sums.dtype), (0, 1), value=1.0)
                sums = sums + sum_by_code(content, codes[:, :block], sums.shape[1])
            keys, values, codes = (x.roll(-block, 1) for x in (keys, values, codes))
        slot = slots - block + place
        codes = None if codes is None or code is None else codes.select_scatter(code, 1, slot)
        keys = keys.select_scatter(k.to(keys.dtype), 1, slot)
        values = values.select_scatter(v.to(values.dtype), 1, slot)
        return State(keys, values, codes, sums, state.position + 1)

    def _normalised(self, x: Tensor) -> Tensor:
        if not self.qk_norm:
            return x
        x = at_least_float32(x)
        return x * (torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * self.d_k**-0.25)


class QueriesAndKeys(nn.Module):
    """Two linear maps of Z ``(..., d_model)``, each to ``(..., d_k)``; with ``shared`` MEGA's form.

    MEGA has one map S = SiLU(Z W + b), queries S ⊙ γ_0 + β_0 and keys S ⊙ γ_1 + β_1.
    """

    def __init__(self, d_model: int, d_k: int, shared: bool) -> None:
        super().__init__()
        if shared:
            self.shared = linear(d_model, d_k, truncated=False)
            self.gamma = nn.Parameter(normal_(torch.empty(2, d_k), WEIGHT_STD, truncated=False))
            self.beta = nn.Parameter(torch.zeros(2, d_k))
        else:
            self.query, self.key = (linear(d_model, d_k, truncated=False) for _ in range(2))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "shared"):
            return self.query(z), self.key(z)
        shared = F.silu(self.shared(z))
        return shared * self.gamma[0] + self.beta[0], shared * self.gamma[1] + self.beta[1]


class LongVQLayer(NormedBlock):
    """One layer of the module docstring, for sequences of at most ``length``."""

    def __init__(self, config: LongVQ, length: int, causal: bool) -> None:
        super().__init__()
        d_model, d_v = config.d_model, config.d_v or 2 * config.d_model
        self.ssm = config.make_ssm(length, causal)
        self.maps = QueriesAndKeys(d_model, config.d_k or max(1, d_model // 2), config.shared_qk)
        self.attention = QuantisedAttention(config, length, causal)
        self.value, self.gate = (linear(d_model, d_v, truncated=False) for _ in range(2))
        self.out = linear(d_v, d_model, truncated=False)
        self.update = linear(d_model, d_model, truncated=False)
        self.set_norm(*config.around)

    def initial_state(self, batch: int) -> Any:
        return self.ssm.initial_state(batch), self.attention.initial_state(batch, self.value.weight)

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        normed, (recurrent, memory) = self.normed(x), state or (None, None)
        averaged, recurrent = computed(self.ssm, normed, state=recurrent, mask=mask)
        z, v = self.dropout(F.silu(averaged)), F.silu(self.value(normed))
        attended, memory = computed(self.attention, *self.maps(z), v, state=memory, mask=mask)
        candidate = self.dropout(self.out(F.silu(self.gate(z)) * attended))
        return self.blend(x, torch.sigmoid(self.update(normed)), candidate), (recurrent, memory)


TREES: dict[str, Any] = {"d_model": 80, "layers": 6, "d_k": 64, "dropout": 0.1, **mega.LISTOPS}


@registry.register("longvq")
@dataclass(frozen=True)
class LongVQ(mega.GatedConfig):
    """A moving average, and gated attention on it with keys quantised by a codebook, in linear time.

    The paper's ablations are settings of ``codebook``, ``attention``, ``local_bias`` and ``quantise``.

    Sources: Liu et al. (arXiv:2404.11163), section 4; the linear-time form is Transformer-VQ's (arXiv:2309.16354).
    """

    # Version 2: the first training batch is quantised with the initial normal draws, not with keys of that batch.
    version: ClassVar[int] = 2
    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset; a step takes longer. Codebook and window fit sequences of
        # a few hundred positions.
        "small": {"d_model": 52, "layers": 2, "norm": "layer", "codebook": 128, "window": 32, "budget.lr": 0.001},
        "small/compression": {"window": None},
        **mega.SHORT_SAMPLES,
        # N = 16, d_k and S as in most rows of the LongVQ paper
        "paper": {**ATOMIC, "d_k": 64, "d_state": 16, "codebook": 512},
        "paper/recall": {**RECALL, "d_k": 32},
        # LongVQ paper, hyper-parameters of LRA. Softmax and ListOps' layer norm are choices (docs/models/longvq.md).
        **dict.fromkeys(mega.LISTOPS_PRESETS, TREES),
        **{name: {"d_model": 64, "d_k": 32, "layers": 4, **mega.PIXELS, **mega.PATH_X} for name in mega.PATH_X_PRESETS},
        # The other rows of the LRA table, for a user's own tasks.
        "lra-text": {"d_model": 128, "layers": 4, "d_k": 64, "norm": "scale", "dropout": 0.1, **mega.TEXT},
        "lra-retrieval": {"d_model": 128, "layers": 6, "d_k": 64, "norm": "scale", "dropout": 0.1, **mega.RETRIEVAL},
        "lra-image": {"d_model": 160, "layers": 8, "d_k": 96, **mega.PIXELS, **mega.IMAGE},
        "lra-pathfinder": {"d_model": 128, "layers": 6, "d_k": 64, **mega.PIXELS, **mega.PATHFINDER},
        "speech": {"d_model": 60, "layers": 6, "d_k": 30, **mega.PIXELS, **mega.SPEECH},
        "enwik8": {"d_model": 512, "layers": 12, "d_k": 128, "d_v": 1024, "d_ffn": 1024, "norm": "layer"}
        | {"prenorm": True, "dropout": 0.1, **mega.ENWIK8},
    }

    d_k: int | None = parameter(None, "width of queries and keys; none: d_model / 2", at_least=1)
    codebook: int = parameter(512, "number of codes S per layer if keys are quantised", at_least=2, at_most=1 << 16)
    quantise: bool = parameter(True, "quantise keys; false: attention over all keys, with quadratic cost")
    commitment: float = parameter(1e-4, "weight γ of the commitment loss", at_least=0)
    decay: float = parameter(0.99, "decay η per batch of the running averages of the codebook", at_least=0, at_most=1)
    key_gradients: Literal["near", "code-mean"] = parameter(
        "near", "gradients of keys: from near queries only, or also from distant ones, averaged over each code"
    )
    window: int | None = parameter(
        None, "reach ω of the local bias, and positions per block; none: 128, or the length if shorter", at_least=1
    )
    local_bias: bool = parameter(True, "add a learned bias by distance up to the window")
    qk_norm: bool = parameter(True, "normalise queries and keys")
    shared_qk: bool = parameter(False, "queries and keys from one shared map, as in MEGA, instead of two linear maps")
    ssm: Literal["ema", "s4d-lin", "s4d-legs"] = parameter(
        "ema", "state-space map: MD-EMA, or S4D with the initial frequencies of Lin or LegS"
    )
    d_state: int = parameter(16, "states per channel and direction; with S4D, an even number", at_least=1, at_most=4096)

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        return self.stack(lambda: LongVQLayer(self, input.length, causal))
