"""The compared methods (Table 1) as values: which nodes to verify, and whether the choice also stops the drafter.

A policy is any function `(state: CycleState, cost: CostModel) -> Selection`. To compare a rule of your own, write the
function; decoding and replay take it alone or wrapped: `Method("mine", policy=my_rule)`. There is no registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from specfit.objective import CostModel, CycleState, Selection
from specfit.select import ExactPolicy, PrefixPolicy, root_only
from specfit.tree import DraftPool

Policy = Callable[..., Selection]  # (state, cost), and seed=(nodes) where the rule can start from an earlier choice
StopRule = Callable[[DraftPool, Selection], bool]  # (pool drafted so far, choice from it) -> draft no further


@dataclass(frozen=True, slots=True)
class Method:
    """A rule for verification nodes and drafting depth.

    Raises ValueError for a negative node limit, a policy that is not callable, or a stop rule without adaptive depth.
    """

    name: str
    policy: Policy
    adaptive_depth: bool = False  # select after every level; stop when the choice takes no node of the newest
    max_nodes: int = 7  # K; 0 never drafts
    uses_routes: bool = True  # False: the policy sees no routes, and their conversion is not on its clock
    stop: StopRule | None = None  # another rule for adaptive depth than "the choice takes no node of the newest level"
    seeded: bool = field(init=False, default=False)  # the policy takes the previous level's choice as `seed`

    def __post_init__(self) -> None:
        if not callable(self.policy):
            raise ValueError(f"method {self.name!r} needs a callable policy (state, cost) -> Selection")
        if self.max_nodes < 0:
            raise ValueError(f"method {self.name!r} has max_nodes = {self.max_nodes}; expected 0 or more")
        if self.stop is not None and not self.adaptive_depth:
            raise ValueError(f"method {self.name!r} has a stop rule, which only adaptive_depth=True asks")
        object.__setattr__(self, "seeded", "seed" in inspect.signature(self.policy).parameters)

    def select(self, state: CycleState, cost: CostModel, *, seed: tuple[int, ...] = ()) -> Selection:
        """The policy's choice; `seed` is an earlier choice over a prefix of the pool, used where it helps."""
        return self.policy(state, cost, seed=seed) if self.seeded else self.policy(state, cost)

    def stops(self, pool: DraftPool, selection: Selection) -> bool:
        """Whether drafting ends with this choice from the pool so far."""
        if self.stop is not None:
            return self.stop(pool, selection)
        # deeper nodes need an ancestor in the newest level, which was not worth it (Section 3.3)
        return not any(pool.depths[node] == pool.levels for node in selection.nodes)


AR = Method("ar", policy=root_only, max_nodes=0, uses_routes=False)
EAGLE3 = Method("eagle3", policy=PrefixPolicy(max_nodes=7), uses_routes=False)
SPECFIT = Method("specfit", policy=ExactPolicy(max_nodes=7), adaptive_depth=True)


def as_method(rule: Method | Policy | str, cost: CostModel | None = None) -> Method:
    """A Method as it is; "ar", "eagle3" or "specfit" by name; a plain policy as a method of its own name.

    A plain policy is asked once a cycle, over the full pool, and may choose as many nodes as the cost has intercepts
    for. Raises ValueError for anything else.
    """
    if isinstance(rule, Method):
        return rule
    known = {method.name: method for method in (AR, EAGLE3, SPECFIT)}
    if isinstance(rule, str) and rule in known:
        return known[rule]
    if isinstance(rule, str) or not callable(rule):
        raise ValueError(
            f"method {rule!r} is unknown; choose {', '.join(known)}, or give a Method or a function "
            "(state, cost) -> Selection"
        )
    return Method(
        getattr(rule, "__name__", type(rule).__name__), policy=rule, max_nodes=7 if cost is None else cost.max_nodes
    )


def with_max_nodes(method: Method, max_nodes: int) -> Method:
    """EAGLE3 or SPECFIT with another K; AR stays as it is."""
    if method.max_nodes == 0:
        return method
    policies = {EAGLE3.name: PrefixPolicy, SPECFIT.name: ExactPolicy}
    if method.name not in policies:
        raise ValueError(
            f"method {method.name!r} is not AR, EAGLE3 or SPECFIT; build its Method with max_nodes instead"
        )
    return Method(
        method.name,
        policy=policies[method.name](max_nodes=max_nodes),
        adaptive_depth=method.adaptive_depth,
        max_nodes=max_nodes,
        uses_routes=method.uses_routes,
    )
