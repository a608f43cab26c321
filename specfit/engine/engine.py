"""The engine: an offloaded target and its drafter behind one object, and the function that loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, cast

import torch
from transformers import PreTrainedModel

from specfit import embedded as embedded_pair
from specfit.cycle import Decoding, RouteSource, StopRule, TruthSource
from specfit.engine.checkpoint_files import open_checkpoint
from specfit.engine.checkpoints import DraftVocabulary, Eagle3Head, LoadReport, read_drafter
from specfit.engine.devices import choose_device
from specfit.engine.drafter import DraftConfig, Eagle3Drafter
from specfit.engine.drafter_config import Overrides
from specfit.engine.experts_kernel import check_kernel
from specfit.engine.generate import generate as generate_text
from specfit.engine.layer_kinds import check_one_rope
from specfit.engine.link import CudaLink, EmulatedLink, InstantLink, Link
from specfit.engine.loading import end_tokens, give_memory_back, gives_back, load_target, load_tokenizer
from specfit.engine.offload import Offload
from specfit.engine.request import EngineRequest
from specfit.engine.self_test import tree_self_test
from specfit.engine.skeleton import choose_dtype
from specfit.engine.target import OffloadedTarget
from specfit.engine.target_facts import read_target_facts
from specfit.engine.token_choice import TokenChoice
from specfit.methods import Method, Policy, as_method
from specfit.objective import CostModel
from specfit.prompts import Messages, one_row, render
from specfit.sampling import Sampling, check_limits


class Engine:
    """Decodes one request at a time. Use it in a `with`, or `close()` it, to give its memory back."""

    def __init__(
        self,
        target: OffloadedTarget,
        drafter: Eagle3Drafter | None,
        tokenizer: Any,
        *,
        eos: Sequence[int],
        settings: dict[str, Any],
        report: LoadReport | None = None,
        left_out: Mapping[str, int] | None = None,
    ) -> None:
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.offload = target.offload
        self.eos = frozenset(eos)
        self.settings = settings  # JSON values that name this configuration
        self.report = report  # how the drafter's checkpoint was read, with its warnings
        self.left_out = dict(left_out or {})  # the target's stored tensors that are not used: {"mtp.*": 9}

    @property
    def layers(self) -> int:
        """MoE layers."""
        return len(self.offload.layers)

    @property
    def experts(self) -> int:
        """Experts of the widest layer."""
        return self.offload.experts

    @property
    def route_settings(self) -> dict[str, Any]:
        """The settings on which routes and pools depend; slots, link and cache do not change them."""
        return {key: self.settings[key] for key in ("target", "drafter", "draft", "dtype")}

    def encode(self, prompt: str | Sequence[int] | Messages) -> tuple[int, ...]:
        """Token ids of a text or messages through the chat template; ids stay as they are.

        They may come as an array (n,) or (1, n), or as what a tokenizer returns.
        """
        if isinstance(prompt, str):
            return render(self.tokenizer, prompt).ids
        items = one_row(prompt)
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in items):
            return tuple(map(int, items))  # numpy's integers become plain ones
        if not all(isinstance(item, Mapping) for item in items):
            kinds = ", ".join(dict.fromkeys(type(item).__name__ for item in items))
            raise ValueError(f"a prompt is a text, messages (role, content) or token ids; this one holds {kinds}")
        return render(self.tokenizer, cast(Messages, items)).ids

    def decode(
        self,
        prompt: str | Sequence[int] | Messages,
        *,
        method: Method | Policy | str,
        cost: CostModel | None = None,
        routes: RouteSource | None = None,
        truth: TruthSource | None = None,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        sampling: Sampling | None = None,
        stop: StopRule | None = None,
        reuse: bool = False,
    ) -> Decoding:
        """Start a request; iterate over the result for its CycleRecords.

        method: a Method, its name, or a rule of your own, as `as_method` takes them.
        cost is needed by methods that weigh time; AR and EAGLE3 only report with it. sampling: None for greedy text.
        min_new_tokens: EOS is banned before. reuse: run only what the prompt adds to what the KV caches hold.
        Raises ValueError for a prompt that with its limit passes the model's context, a token outside the vocabulary,
        or a missing cost, drafter or route source.
        """
        method, ids = as_method(method, cost), self.encode(prompt)
        check_limits(max_new_tokens, min_new_tokens)
        self.check_prompt(ids, max_new_tokens, drafts=method.max_nodes > 0)
        if cost is None:
            if method.uses_routes:
                raise ValueError(f"method {method.name!r} needs cost coefficients; fit them with `specfit calibrate`")
            cost = CostModel((0.0,) * (method.max_nodes + 1), 0.0)
        drafts = method.max_nodes > 0 and self.drafter is not None
        choice = None
        if sampling is not None or min_new_tokens:
            choice = TokenChoice(sampling, prompt_tokens=len(ids), min_new_tokens=min_new_tokens, eos=self.eos)
        room = max_new_tokens + 1 + method.max_nodes  # the last tree's rows go past the text
        request = EngineRequest(self, choice=choice, drafts=drafts, reuse=reuse, room=room)
        return Decoding(
            ids,
            target=request,
            drafter=request if drafts else None,
            method=method,
            cost=cost,
            routes=routes,
            truth=truth,
            max_new_tokens=max_new_tokens,
            eos=self.eos,
            stop=stop,
            clock=getattr(routes, "clock", perf_counter),  # a source may take its own time off the request
        )

    generate = generate_text  # the engine is its first argument

    def room(self, prompt: Sequence[int], most: int) -> int:
        """New tokens that a prompt may get, `most` or what the context leaves; ValueError where it leaves none."""
        context = getattr(self.target.config, "max_position_embeddings", None) or len(prompt) + most
        if len(prompt) >= context:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and the model's context holds {context}, so nothing can follow; "
                "shorten it or leave it out (prompts are never cut)"
            )
        return min(most, context - len(prompt))

    def check_logits(self) -> None:
        """ValueError where the last forward's logits hold NaN: its tokens then mean nothing."""
        if torch.isnan(self.target.last_logits).any():
            raise ValueError(
                "the target's logits are NaN, so its tokens mean nothing; try another dtype (bfloat16 has a wider "
                "range than float16) or check the checkpoint"
            )

    def reset(self) -> None:
        """Empty the expert caches, as at the start of a method's request stream."""
        self.check_open()
        self.offload.clear()

    def close(self) -> None:
        """Give the memory back; the engine cannot be used afterwards. Calling it twice is fine."""
        if self.target is not None:
            self.target.close()
            self.offload.close()
        self.target = self.drafter = self.offload = None  # type: ignore[assignment]
        give_memory_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_open(self) -> None:
        """ValueError after `close`."""
        if self.target is None:
            raise ValueError("this engine is closed and its memory given back; load it again")

    def check_prompt(self, ids: Sequence[int], max_new_tokens: int, *, drafts: bool = False) -> None:
        """ValueError for a prompt that with its limit passes the context, or a token outside the vocabulary.

        drafts: and for a text that would take drafted trees past the point where rotary frequencies change.
        """
        self.check_open()
        config = self.target.config
        context = getattr(config, "max_position_embeddings", None)
        if context and len(ids) + max_new_tokens > context:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and the limit is {max_new_tokens} new ones; together they pass the "
                f"model's context of {context}, so shorten one of them"
            )
        wrong = next((token for token in ids if not 0 <= token < config.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is outside the target's vocabulary of {config.vocab_size}")
        if drafts:
            check_one_rope(config, prompt=len(ids), new=max_new_tokens)


@gives_back
def load_engine(
    target: str | Path = "embedded",
    *,
    drafter: str | Path | None = None,
    overrides: Overrides | None = None,
    slots_per_layer: int | float | None = None,
    device_memory: str | int | None = None,
    cleared: bool = False,
    link: Link | float | None = None,
    draft: DraftConfig | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    attention: str | None = None,
    pin: bool | None = None,
    experts: str = "memory",
    kernel: str = "host_grouped",
    overlap: bool | None = None,
    self_test: bool = True,
) -> Engine:
    """Load a target with its experts in host memory, and its drafter.

    target: "embedded" (the small pair that ships with the package), a folder, or a hub id. drafter: likewise; the
        embedded target brings its own, any other target without one decodes with AR only.
    overrides: what you know better than the drafter's config.json; `specfit inspect` finds out by trying.
    slots_per_layer: experts of each layer that have a slot on the device, or their share (0.5); None for as many as
        `device_memory` ("20GB") holds beside the rest, by default all that a CPU or the GPU's free memory does.
    cleared: empty the expert cache before every forward ("without the cache").
    link: an emulated link's milliseconds per expert, or a Link; None copies without delay (on CUDA: a real link).
    draft: the candidate generator. device: "cpu", "cuda", ...; CUDA if there is one and the link is not emulated.
    dtype: a torch dtype or its name; float32 on a CPU, else the checkpoint's. kernel: what computes
        experts in their slots, see `experts_kernel`.
    attention: "sdpa" or "eager"; sdpa where the family has it. pin: have the experts in pinned memory; on CUDA only by
        default, and whatever cannot be pinned stays pageable with a warning.
    experts: "memory", or on a CPU "mapped": they stay in the checkpoint's files, for a model larger than memory.
    overlap: run hits while misses are copied; by default on CUDA only, where a kernel call costs the host little.
    Raises ValueError (CheckpointError) with one sentence for whatever does not fit.
    """
    emulated = isinstance(link, int | float | EmulatedLink)  # stands in for a real one on a CPU, so that is meant
    device = choose_device(device, emulated=emulated)
    if emulated and device.type != "cpu":
        raise ValueError("an emulated link stands in for a real one on a CPU; on CUDA leave link out")
    embedded = target == "embedded"
    folder = embedded_pair.target_folder() if embedded else target
    own_drafter = drafter == "embedded" or (embedded and drafter is None)
    if own_drafter:
        drafter = embedded_pair.drafter_folder()
    draft = draft or DraftConfig()
    if not isinstance(draft, DraftConfig):
        raise ValueError(f"draft is {draft!r}; expected a DraftConfig(top_k=..., depth=..., max_pool=...)")
    link = _link(link, device)
    check_kernel(kernel)
    with open_checkpoint(folder) as checkpoint:
        dtype = choose_dtype(dtype, checkpoint.config, device)
        facts = read_target_facts(checkpoint.config, name="" if embedded else str(target))
        eos = end_tokens(checkpoint.folder, checkpoint.config, facts.vocab_size)
        tokenizer = load_tokenizer(checkpoint.folder, facts.vocab_size)

        def read_head(model: PreTrainedModel) -> tuple[Eagle3Head, DraftVocabulary, LoadReport] | None:
            if drafter is None:
                return None
            return read_drafter(
                drafter,
                target=facts,
                dtype=dtype,
                device=device,
                target_embedding=model.get_input_embeddings().weight,
                target_lm_head=model.get_output_embeddings().weight,
                **asdict(overrides or Overrides()),
            )

        loaded = load_target(
            checkpoint,
            name=str(target),
            dtype=dtype,
            device=device,
            attention=attention,
            slots=slots_per_layer,
            device_memory=device_memory,
            drafter=drafter,
            pin=pin,
            experts=experts,
            beside=read_head,
        )
    model, slots = loaded.model, loaded.slots
    offload = Offload(
        model,
        loaded.host,
        slots=slots,
        link=link,
        cleared=cleared,
        overlap=device.type == "cuda" if overlap is None else overlap,
        kernel=kernel,
        device=device,
    )
    session, report = None, None
    if loaded.beside is not None:
        head, vocabulary, report = loaded.beside
        if device.type == "cuda":  # or every draft step waits for the device to learn its largest position
            head.rope.promise(getattr(model.config, "max_position_embeddings", None) or 1 << 15)
        session = Eagle3Drafter(head, target_ids=vocabulary.target_ids, config=draft, eos=eos, device=device)
    aux = session.head.config.aux_layer_ids if session is not None else ()
    offloaded = OffloadedTarget(model, offload, aux_layer_ids=aux, device=device)
    if self_test:
        tree_self_test(offloaded)
    settings = {
        "target": "embedded" if embedded else str(target),
        "drafter": _drafter_name(drafter, overrides, embedded=own_drafter),
        "draft": {"top_k": draft.top_k, "depth": draft.depth, "max_pool": draft.max_pool},
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
        "attention": model.config._attn_implementation,
        "kernel": kernel,
        "slots_per_layer": slots,
        "cleared": cleared,
        "link": link.describe(),
        **({"experts": experts} if experts != "memory" else {}),
    }
    return Engine(offloaded, session, tokenizer, eos=eos, settings=settings, report=report, left_out=loaded.left_out)


def expected_route_settings(
    target: str | Path = "embedded",
    *,
    drafter: str | Path | None = None,
    draft: DraftConfig | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
) -> dict[str, Any]:
    """The `route_settings` of the engine that `load_engine` would load with these, from the config alone."""
    device = choose_device(device, here=False)
    embedded = target == "embedded"
    with open_checkpoint(embedded_pair.target_folder() if embedded else target) as checkpoint:
        found = choose_dtype(dtype, checkpoint.config, device)
    return {
        "target": "embedded" if embedded else str(target),
        "drafter": str(drafter) if drafter is not None else ("embedded" if embedded else None),  # or "embedded" itself
        "draft": asdict(draft or DraftConfig()),
        "dtype": str(found).removeprefix("torch."),
    }


def _drafter_name(drafter: str | Path | None, overrides: Overrides | None, *, embedded: bool) -> str | None:
    """The name in the settings; a drafter read in another way is another drafter."""
    if drafter is None:
        return None
    given = {key: value for key, value in asdict(overrides or Overrides()).items() if value not in (None, ())}
    name = "embedded" if embedded else str(drafter)
    return name + "".join(f" {key}={value}" for key, value in given.items())


def _link(link: Link | float | None, device: torch.device) -> Link:
    if link is None:
        return CudaLink(device) if device.type == "cuda" else InstantLink()
    if isinstance(link, int | float) and not isinstance(link, bool):
        return EmulatedLink(link)
    if not hasattr(link, "fetch"):
        raise ValueError(f"link is {link!r}; expected milliseconds for each expert, or a Link")
    return cast(Link, link)


def use_threads(threads: int) -> None:
    """CPU threads for every model in this process. A small model is fastest with one, which leaves others alone."""
    torch.set_num_threads(threads)
