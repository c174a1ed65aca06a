"""`CollageAdamW`: AdamW whose 16-bit weights keep what rounding would lose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.kernels import Step, Update, check_dtype, kernel_for, run_canary
from roundoff.telling import warn
from roundoff.watch.statistics import Meter

from .keys import Keys
from .options import STRUCTURE, Scalars, check_options, plan_of, step_of
from .outside import Seal, contradicts
from .restore import adopt_state, convert_weight, dropped_by
from .routine import Round, Routine, Turn
from .shards import local, noise_for, part_of, shared_like
from .state import initial_state, resync, seed_weight, stored_weight

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class CollageAdamW(Optimizer):
    """AdamW for parameters stored in 16 bit, after [Collage] (Yu et al., ICML 2024, arXiv 2405.03637).

    Args:
        params: parameters, named or not, or groups of them, as `torch.optim.AdamW` takes them; bfloat16 or
            float16, or, experimentally, float8 (docs/float8.md). float32 parameters among them get the plain
            update: they are their own master.
        lr, betas, eps, weight_decay: as in `torch.optim.AdamW`; lr may be a 0-dim tensor. Decay is part of
            the update, never a separate multiply on the stored word.
        strategy: what is kept beside weight and moments, see `roundoff.optim.STRATEGIES`; per group.
        arithmetic: "fp32" computes in float32 registers and rounds what is stored, once; "storage" rounds
            every operation to the storage format, as the paper's hardware does, and is slow; per group.
        backend: "auto", or the name of one kernel backend.
        seed: of stochastic rounding; its random bits follow from (seed, step, parameter, element) alone.
        maximize: ascend instead of descend; per group.
        amsgrad: divide by the largest second moment so far, which is kept as the second moment is; per group.

    State per parameter: `step` (0-dim float32 on the CPU; on the parameter's device once a loss scaler's
    `found_inf` was there) and the tensors that the strategy names, of the parameter's shape. A `GradScaler`
    hands its scale and `found_inf` over: gradients stay as they are, and a skipped step changes nothing.
    Sharded parameters (DTensor) are stepped shard by shard to the same bits; gather weights as float32, since
    neither gloo nor NCCL sends the 16-bit integers of "exact", or save sharded with `torch.distributed.checkpoint`.
    In a compiled training step this one runs as it is, at the cost of one graph break.
    Raises ValueError or TypeError for options out of range, and RuntimeError where the roundings that the
    strategies need are optimised away.
    """

    measures_itself = True
    """A watch takes the statistics from the step's own pass, through `meters`."""

    _step_supports_amp_scaling = True
    """`torch.amp.GradScaler` then sets `grad_scale` and `found_inf` here and leaves the rest to the step."""

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
        seed: int = 0,
        maximize: bool = False,
        amsgrad: bool = False,
    ) -> None:
        kernel_for(backend, arithmetic)
        self._backend = backend
        self._seed, self._keys = int(seed), Keys(seed)
        self.meters: dict[Tensor, Meter] | None = None
        """Set to a dict before a step to have that step measured: it then holds one `Meter` per parameter."""
        self.headroom = True
        """Whether measured steps make the histograms too; those of the C and Triton kernels cost less without."""
        self._routine = Routine(backend)
        self._seals: dict[Tensor, Seal] = {}
        """Of parameters that do not stand (see `routine`)."""
        self._converted: dict[Tensor, dict[str, Tensor]] = {}
        self._warned_outside = False
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "strategy": strategy,
            "arithmetic": arithmetic,
            "maximize": maximize,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)

    def _patch_step_function(self) -> None:
        super()._patch_step_function()
        step = type(self).step
        if not getattr(step, "eager", False):
            # A compiled training step breaks once here and runs the rest as it is: a compiler would remove the
            # very roundings that the second words live on. Outermost, so that hooks are not compiled either.
            eager: Any = torch.compiler.disable(step)  # type: ignore[no-untyped-call]
            eager.eager = True
            type(self).step = eager  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`; its options are checked before anything changes."""
        check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            kernel = kernel_for(self._backend, group["arithmetic"])
            places = {(p.device, p.dtype): plan_of(p, group) for p in group["params"]}
            for (device, dtype), plan in places.items():
                check_dtype(self._backend, dtype)
                if plan.keeps_more_than_the_word and device.type != "meta":
                    run_canary(kernel, plan, device, dtype, group["arithmetic"])
        except (TypeError, ValueError, RuntimeError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update. `closure` re-evaluates the model and returns the loss, which is then returned.

        Raises RuntimeError for a sparse gradient and TypeError for one of 8 bit, before anything has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scalars, found_inf = Scalars(getattr(self, "grad_scale", None)), getattr(self, "found_inf", None)
        again, turns = self._due(found_inf)
        if found_inf is not None and _on_host(found_inf):
            if float(found_inf):
                self._skip([*again.params, *(turn.param for turn in turns)])
                return loss
            found_inf = None
        turns += [self._turn(param, group) for param, group in again.changed()]
        again.prepare(scalars, self._key_of)
        updates: list[Update] = []
        for turn in turns:
            self._begin(turn)
            updates.append(self._update(turn, self._count(turn, scalars, found_inf)))
        for arithmetic in dict.fromkeys(turn.group["arithmetic"] for turn in turns):
            kernel = kernel_for(self._backend, arithmetic)
            kernel([u for t, u in zip(turns, updates, strict=True) if t.group["arithmetic"] == arithmetic])
        again.step(self.meters, headroom=self.headroom)
        # A kernel may write past autograd, which has to notice graphs that still hold the old weights.
        torch.autograd.graph.increment_version([*again.params, *(update.param for update in updates)])
        for turn, update in zip(turns, updates, strict=True):
            self._end(turn, update)
        return loss

    def _due(self, found_inf: Tensor | None) -> tuple[Round, list[Turn]]:
        """The parameters that have a gradient: those that stand, and the others.

        None stands where the device alone knows whether to step. Raises RuntimeError for a sparse gradient.
        """
        again, turns = self._routine.begin(), []
        for group in self.param_groups:
            able = (found_inf is None or _on_host(found_inf)) and self._routine.takes(group)
            for param in group["params"]:
                grad = param.grad
                if grad is None or (able and again.add(param, grad, group, self.state.get(param))):
                    continue
                turns.append(self._turn(param, group))
        return again, turns

    def _turn(self, param: Tensor, group: dict[str, Any]) -> Turn:
        """A parameter that does not stand, or no longer."""
        turn = Turn.of(param, group)
        seal = self._routine.release(param)
        if seal is not None:
            self._seals[param] = seal
        return turn

    def _end(self, turn: Turn, update: Update) -> None:
        """Seal what a step has left; from here on the parameter may stand."""
        seal = Seal.of(local(turn.param)) if turn.plan.keeps_more_than_the_word else None
        if turn.param not in self._converted and self._routine.stand(
            turn, update, self.state[turn.param]["step"], seal
        ):
            self._seals.pop(turn.param, None)
        elif seal is not None:
            self._seals[turn.param] = seal

    def _begin(self, turn: Turn) -> None:
        """Make the state before a parameter's first step; look for changes from outside before later ones."""
        if not self.state[turn.param]:
            made = initial_state(turn.param, turn.plan, amsgrad=turn.group["amsgrad"])
            self.state[turn.param].update(made)
        elif turn.plan.keeps_more_than_the_word:
            self._settle(turn.param)
            self._converted.pop(turn.param, None)
            self._check_outside(turn.param)

    def _count(self, turn: Turn, scalars: Scalars, found_inf: Tensor | None) -> Step:
        """Count one step of a parameter and give its scalars."""
        state = self.state[turn.param]
        count = state["step"]
        if found_inf is None and _on_host(count):
            count += 1
            return scalars.of(turn.group, float(count))
        # Whether this step counts is known to the device alone, and reading it would wait.
        device = local(turn.param).device
        count = state["step"] = count.to(device)
        found = None if found_inf is None else found_inf.to(device, non_blocking=True)
        scale = None if scalars.grad_scale is None else scalars.grad_scale.to(device, non_blocking=True)
        count += 1 if found is None else found == 0
        return step_of(turn.group, count, scale, found)

    def _update(self, turn: Turn, step: Step) -> Update:
        meter = noise = None
        kept = self.state[turn.param]
        if self.meters is not None:
            meter = self.meters[turn.param] = Meter(local(turn.param).device, headroom=self.headroom)
            meter.found_inf = step.found_inf
        if turn.plan.name == "stochastic":
            noise = noise_for(turn.param, self._key_of(turn.param, float(kept["step"])))
        state = {name: local(tensor) for name, tensor in kept.items() if name != "step"}
        grad: Tensor = turn.param.grad  # type: ignore[assignment]
        return Update(local(turn.param), part_of(grad, turn.param), state, turn.plan, step, meter, noise)

    def _key_of(self, param: Tensor, count: float) -> int:
        return self._keys.of(param, count, self.param_groups)

    def _skip(self, params: list[Tensor]) -> None:
        """A loss scaler found infinities: nothing changes, and a measured step counts as skipped."""
        if self.meters is None:
            return
        for param in params:
            part = local(param)
            meter = self.meters[param] = Meter(part.device)
            meter.add(numel=part.numel(), skipped=1)

    def _settle(self, param: Tensor) -> None:
        """Convert again what a checkpoint kept of a weight, if the weight itself was loaded after it."""
        if param in self._converted and self._seals[param].broken(local(param)):
            convert_weight(param, self.state[param], self._converted[param])
            self._seals[param] = Seal.of(local(param))

    def _check_outside(self, param: Tensor) -> None:
        seal, part = self._seals.get(param), local(param)
        if seal is not None and not seal.broken(part):
            return
        state = {name: local(tensor) for name, tensor in self.state[param].items()}
        if seal is None and not contradicts(part, state):
            return
        resync(part, state)
        if not self._warned_outside:
            self._warned_outside = True
            warn(
                f"a parameter of shape {tuple(param.shape)} was changed outside the optimizer since its "
                "last step (a reload, an EMA swap?): its second word or master was reset to the new weight. "
                "Call optimizer.resync() after such a change to say so. Said once."
            )

    def resync(self, params: Iterable[Tensor] | None = None) -> None:
        """Take the weights as they are now: lo and remainder ← 0, master ← w, for `params` or all of them.

        For changes from outside that sampled words may miss, such as a few edited rows of a large embedding.
        """
        chosen = self.state.keys() if params is None else params
        with torch.no_grad():
            for param in list(chosen):
                resync(param, self.state.get(param, {}))
                self._routine.release(param)
                self._seals.pop(param, None)
                self._converted.pop(param, None)

    def seed(self, param: Tensor, exact: Tensor) -> None:
        """Start a parameter's second word or master from a float32 value that its storage rounded.

        `exact` is float32 of the parameter's shape; the visible word becomes the strategy's rounding of it.
        Raises ValueError if the parameter is not ours or has been stepped already.
        """
        group = self._group_of(param)
        plan = plan_of(param, group)
        if self.state.get(param):
            raise ValueError("a second word can be seeded before the first step only")
        state = self.state[param] = initial_state(param, plan, amsgrad=group["amsgrad"])
        self._routine.release(param)
        with torch.no_grad():
            seed_weight(local(param), {name: local(tensor) for name, tensor in state.items()}, local(exact))
        if plan.keeps_more_than_the_word:
            self._seals[param] = Seal.of(local(param))

    def stored_value(self, param: Tensor) -> Tensor:
        """Everything that is stored of a parameter, float32, its shape: the master, hi + lo, or the weight."""
        with torch.no_grad():
            self._settle(param)
            state = {name: local(tensor) for name, tensor in self.state.get(param, {}).items()}
            return shared_like(stored_weight(local(param.detach()), state), param)

    def _group_of(self, param: Tensor) -> dict[str, Any]:
        for group in self.param_groups:
            if any(param is own for own in group["params"]):
                return group
        raise ValueError(f"a parameter of shape {tuple(param.shape)} is not in this optimizer")

    def state_dict(self) -> dict[str, Any]:
        """The state as `torch.optim.Optimizer` gives it."""
        with torch.no_grad():
            for param in self._converted:
                self._settle(param)
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; every tensor that fits comes back bit for bit, in its own dtype.

        The layout of the state stays the one this optimizer was built with: moments of another strategy are
        converted, a missing second word starts at 0 with a warning, and a float buffer where integers belong
        raises TypeError. A load that is refused leaves the optimizer as it was.
        """
        self._seals |= self._routine.release_all()
        before = self.state, self.param_groups, self._seals, self._converted
        try:
            missing, surplus = self._load(state_dict)
        except Exception:
            self.state, self.param_groups, self._seals, self._converted = before
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
        structure = [{key: group[key] for key in STRUCTURE} for group in self.param_groups]
        taken: list[dict[str, Any]] = []
        missing: set[str] = set()
        surplus: set[str] = set()

        def take(optimizer: Optimizer, final: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
            # After the hooks of others; what torch would cast to the parameter's dtype is not shown to it.
            ids = [index for group in final["param_groups"] for index in group["params"]]
            taken.extend(final["state"].get(index, {}) for index in ids)
            known = set(ids)
            return {**final, "state": {k: v for k, v in final["state"].items() if k not in known}}

        def give(optimizer: Optimizer) -> None:  # noqa: ARG001
            # Before the hooks of others, which find the state complete.
            for group, kept in zip(self.param_groups, structure, strict=True):
                group.update(kept)
            owners = [(param, group) for group in self.param_groups for param in group["params"]]
            for (param, group), saved in zip(owners, taken, strict=True):
                if saved:
                    missing.update(self._adopt(param, group, saved))
                    surplus.update(dropped_by(saved, plan_of(param, group)))

        hooks = [
            self.register_load_state_dict_pre_hook(take),
            self.register_load_state_dict_post_hook(give, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()
        return missing, surplus

    def _adopt(self, param: Tensor, group: dict[str, Any], saved: dict[str, Any]) -> set[str]:
        """Take over one parameter's saved state; returns the names of what it lacked."""
        adopted = adopt_state(param, saved, plan_of(param, group), amsgrad=group["amsgrad"])
        self.state[param] = adopted.state
        if adopted.words is not None:
            self._converted[param] = adopted.words
            self._seals[param] = Seal.of(local(param))
        return adopted.lacking

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Seals and meters belong to one process and its tensors; a copy starts without them.
        self._routine, self._keys, self._seals = Routine(self._backend), Keys(self._seed), {}
        self._converted = {}
        self.meters, self.headroom = None, True
        for group in self.param_groups:
            for key in (*STRUCTURE, "maximize"):
                group.setdefault(key, self.defaults[key])

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_backend": self._backend,
            "_seed": self._seed,
            "_warned_outside": self._warned_outside,
        }


def _on_host(tensor: Tensor) -> bool:
    """Whether a value can be read without waiting for a device."""
    return tensor.device.type == "cpu"
