"""`CollageAdamW`: AdamW whose 16-bit weights keep what rounding would lose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.kernels import Step, kernel_for, run_canary
from roundoff.telling import warn
from roundoff.watch.statistics import Meter

from .outside import Seal
from .restore import adopt_state, dropped_by
from .strategies import Strategy, strategy_for

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
STRUCTURE = ("strategy", "arithmetic")
"""Group options that say how state is laid out: they stay as constructed when a checkpoint is loaded."""


class CollageAdamW(Optimizer):
    """AdamW for parameters stored in 16 bit, after [Collage] (Yu et al., ICML 2024, arXiv 2405.03637).

    Args:
        params: parameters, named or not, or groups of them, as `torch.optim.AdamW` takes them; bfloat16 or
            float16. float32 parameters among them get the plain update: they are their own master.
        lr, betas, eps, weight_decay: as in `torch.optim.AdamW`; lr may be a 0-dim tensor. Decay is part of
            the update, never a separate multiply on the stored word.
        strategy: what is kept beside weight and moments, see `roundoff.optim.STRATEGIES`; per group.
        arithmetic: "fp32" computes in float32 registers and rounds what is stored, once; "storage" rounds
            every operation to the storage format, as the paper's hardware does, and is slow; per group.
        backend: "auto", or the name of one kernel backend.
        maximize: ascend instead of descend; per group.

    State per parameter: `step` (0-dim float32 on the CPU) and the tensors that the strategy names, of the
    parameter's shape. Raises ValueError or TypeError for options out of range, and RuntimeError where the
    roundings that the strategies need are optimised away.
    """

    measures_itself = True
    """A watch takes the statistics from the step's own pass, through `meters`."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        strategy: str = "plus",
        arithmetic: str = "fp32",
        backend: str = "auto",
        maximize: bool = False,
    ) -> None:
        kernel_for(backend, arithmetic)
        self._backend = backend
        self.meters: dict[Tensor, Meter] | None = None
        """Set to a dict before a step to have that step measured: it then holds one `Meter` per parameter."""
        self._seals: dict[Tensor, Seal] = {}
        self._warned_outside = False
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "strategy": strategy,
            "arithmetic": arithmetic,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`; its options are checked before anything changes."""
        _check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            kernel = kernel_for(self._backend, group["arithmetic"])
            places = {(p.device, p.dtype): _plan(p, group) for p in group["params"]}
            for (device, dtype), plan in places.items():
                if plan.keeps("lo") and device.type != "meta":
                    run_canary(kernel, plan, device, dtype, group["arithmetic"])
        except (TypeError, ValueError, RuntimeError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update. `closure` re-evaluates the model and returns the loss, which is then returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            kernel = kernel_for(self._backend, group["arithmetic"])
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(kernel, param, group)
        return loss

    def _step_one(self, kernel: Any, param: Tensor, group: dict[str, Any]) -> None:
        if param.grad.is_sparse:  # type: ignore[union-attr]
            raise RuntimeError(
                "CollageAdamW does not take sparse gradients; build the embedding with sparse=False"
            )
        plan = _plan(param, group)
        state = self.state[param]
        if not state:
            state.update(_initial_state(param, plan))
        self._check_outside(param, state)
        state["step"] += 1
        meter = None
        if self.meters is not None:
            meter = self.meters[param] = Meter(param.device)
        kernel(param, param.grad, state, plan, _step_of(group, int(state["step"])), meter)
        if plan.keeps("lo") or plan.keeps("master"):
            self._seals[param] = Seal.of(param)

    def _check_outside(self, param: Tensor, state: dict[str, Any]) -> None:
        seal = self._seals.get(param)
        if seal is None or not seal.broken(param):
            return
        _resync_one(param, state)
        if not self._warned_outside:
            self._warned_outside = True
            warn(
                f"a parameter of shape {tuple(param.shape)} was changed outside the optimizer since its last "
                "step (a reload, an EMA swap?): its second word or master was reset to the new weight. "
                "Call optimizer.resync() after such a change to say so. Said once."
            )

    def resync(self, params: Iterable[Tensor] | None = None) -> None:
        """Take the weights as they are now: lo ← 0, master ← w, for `params` or all of them.

        For changes from outside that sampled words may miss, such as a few edited rows of a large embedding.
        """
        chosen = self.state.keys() if params is None else params
        with torch.no_grad():
            for param in list(chosen):
                _resync_one(param, self.state.get(param, {}))
                self._seals.pop(param, None)

    def seed(self, param: Tensor, exact: Tensor) -> None:
        """Start a parameter's second word or master from a float32 value that its storage rounded.

        `exact` is float32 of the parameter's shape. Raises ValueError if the parameter is not ours or has
        been stepped already.
        """
        plan = self._plan_of(param)
        if self.state.get(param):
            raise ValueError("a second word can be seeded before the first step only")
        state = self.state[param] = _initial_state(param, plan)
        with torch.no_grad():
            if "lo" in state:
                rest = exact - param.to(torch.float32)
                state["lo"].copy_(torch.where(rest.isfinite(), rest, 0.0))
            if "master" in state:
                state["master"].copy_(exact)
        self._seals[param] = Seal.of(param)

    def stored_value(self, param: Tensor) -> Tensor:
        """Everything that is stored of a parameter, float32, its shape: the master, hi + lo, or the weight."""
        state = self.state.get(param, {})
        if "master" in state:
            master: Tensor = state["master"]
            return master.clone()
        value = param.detach().to(torch.float32, copy=True)
        if "lo" in state:
            value = value + state["lo"].to(torch.float32)
        return value

    def _plan_of(self, param: Tensor) -> Strategy:
        for group in self.param_groups:
            if any(param is own for own in group["params"]):
                return _plan(param, group)
        raise ValueError(f"a parameter of shape {tuple(param.shape)} is not in this optimizer")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; every tensor that fits comes back bit for bit, in its own dtype.

        The layout of the state stays the one this optimizer was built with: moments of another strategy are
        converted, a missing second word starts at 0 with a warning, and a float buffer where integers belong
        raises TypeError. A load that is refused leaves the optimizer as it was.
        """
        before = self.state, self.param_groups, self._seals
        try:
            missing, surplus = self._load(state_dict)
        except Exception:
            self.state, self.param_groups, self._seals = before
            raise
        if missing:
            warn(
                f"the checkpoint holds no {', '.join(sorted(missing))}: what rounding had kept is gone, "
                "and it starts again from the weights as they are; the moments were kept"
            )
        if surplus:
            warn(
                f"the checkpoint's {', '.join(sorted(surplus))} has no place in this strategy: what it kept of "
                "the weights is dropped"
            )

    def _load(self, state_dict: dict[str, Any]) -> tuple[set[str], set[str]]:
        """Load; returns the names of what the checkpoint lacked, and of what had to be dropped."""
        loaded = state_dict

        def capture(optimizer: Optimizer, final: dict[str, Any]) -> None:  # noqa: ARG001
            nonlocal loaded
            loaded = final  # what the hooks before this one have made of it

        structure = [{key: group[key] for key in STRUCTURE} for group in self.param_groups]
        hook = self.register_load_state_dict_pre_hook(capture)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        for group, kept in zip(self.param_groups, structure, strict=True):
            group.update(kept)
        ids = [index for group in loaded["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        plans = {param: _plan(param, group) for group in self.param_groups for param in group["params"]}
        missing: set[str] = set()
        surplus: set[str] = set()
        for index, param in zip(ids, params, strict=True):
            if index in loaded["state"]:
                saved = loaded["state"][index]
                self.state[param], lacking = adopt_state(param, saved, plans[param])
                missing |= lacking
                surplus |= dropped_by(saved, plans[param])
        return missing, surplus

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Seals and meters belong to one process and its tensors; a copy starts without them.
        self._seals = {}
        self.meters = None
        for group in self.param_groups:
            for key in (*STRUCTURE, "maximize"):
                group.setdefault(key, self.defaults[key])

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_backend": self._backend,
            "_warned_outside": self._warned_outside,
        }


def _plan(param: Tensor, group: dict[str, Any]) -> Strategy:
    plan = strategy_for(group["strategy"], param.dtype)
    if group["arithmetic"] == "storage" and (plan.keeps("master") or param.dtype == torch.float32):
        raise ValueError(
            f"arithmetic='storage' rounds every operation to 16 bit; it has no meaning for strategy "
            f"{group['strategy']!r} with {param.dtype} parameters. Use arithmetic='fp32'."
        )
    return plan


def _initial_state(param: Tensor, plan: Strategy) -> dict[str, Tensor]:
    state = {"step": torch.zeros((), dtype=torch.float32)}
    for tensor in plan.state:
        dtype = tensor.dtype_for(param.dtype)
        state[tensor.name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    if "master" in state:
        state["master"].copy_(param)
    return state


def _resync_one(param: Tensor, state: dict[str, Any]) -> None:
    if "lo" in state:
        state["lo"].zero_()
    if "master" in state:
        state["master"].copy_(param)


def _step_of(group: dict[str, Any], count: int) -> Step:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    decay = float(group["weight_decay"])
    return Step(count, group["lr"], beta1, beta2, group["eps"], decay, group["maximize"])


def _check_options(options: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        value = options[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"{name} must be a number or a 0-dim tensor, got shape {tuple(value.shape)}")
        if not float(value) >= 0:
            raise ValueError(f"{name} must be 0 or larger, got {float(value)}")
    if len(options["betas"]) != 2:
        raise ValueError(f"betas must be two numbers, got {options['betas']!r}")
    for name, beta in zip(("betas[0]", "betas[1]"), options["betas"], strict=True):
        if not 0 <= float(beta) < 1:
            raise ValueError(f"{name} must be in [0, 1), got {float(beta)}")
    strategy_for(options["strategy"], torch.float32)
