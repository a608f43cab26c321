"""The two fits find the coefficients that made the probes, and say what to distrust."""

from __future__ import annotations

import random

import pytest

from specfit.fit import Fit, Probe, fit_consecutive, fit_paper
from specfit.routes import expert_union
from specfit.select import min_union_tree, prefix_tree
from tests.pools import PAPER_COST, small_grown_state


def paper_probes(*, noise: float = 0.0) -> list[Probe]:
    """Nine states, sizes 0..7, two trees a size: 144 probes of known cost."""
    rng = random.Random(0)
    probes = []
    for seed in range(9):
        state = small_grown_state(seed)
        for size in range(8):
            for tree in (prefix_tree(state, size), min_union_tree(state, size)):
                union = expert_union(state.routes, tree)
                ms = PAPER_COST.intercepts_ms[size] + PAPER_COST.expert_ms * union + rng.gauss(0, noise)
                probes.append(Probe(size, 5, union, ms))
    return probes


def stream(
    count: int = 200, *, noise: float = 0.0, levels: int | None = None, step: float = 0.0, largest: int = 7
) -> list[Probe]:
    rng = random.Random(1)
    probes = []
    for _ in range(count):
        nodes, depth, union = rng.randrange(largest + 1), levels or rng.randrange(1, 6), rng.randrange(10, 60)
        ms = 9 + step * (nodes > 0) + 0.4 * nodes + 1.5 * depth + 0.21 * union + rng.gauss(0, noise)
        probes.append(Probe(nodes, depth, union, ms))
    return probes


def test_appendix_b_the_papers_fit_recovers_its_coefficients() -> None:
    found = fit_paper(paper_probes())
    assert found.count == 144
    assert found.cost.intercepts_ms == pytest.approx(PAPER_COST.intercepts_ms)
    assert found.cost.expert_ms == pytest.approx(PAPER_COST.expert_ms)
    assert found.r2 == pytest.approx(1)
    assert found.rms_ms == pytest.approx(0, abs=1e-9)
    assert found.warnings == ()
    assert 1 < found.condition < 1000


def test_appendix_b_residuals_are_those_of_the_probes() -> None:
    probes = paper_probes(noise=0.5)
    found = fit_paper(probes)
    for probe, residual in zip(probes, found.residuals_ms, strict=True):
        predicted = found.cost.intercepts_ms[probe.nodes] + found.cost.expert_ms * probe.union
        assert residual == pytest.approx(probe.ms - predicted)
    assert found.rms_ms == pytest.approx((sum(r * r for r in found.residuals_ms) / 144) ** 0.5)
    assert abs(found.worst_ms) == max(map(abs, found.residuals_ms))
    assert 0 < found.r2 < 1


def test_consecutive_cycles() -> None:
    found = fit_consecutive(stream())
    assert found.cost.intercepts_ms == pytest.approx([9 + 0.4 * k for k in range(8)])
    assert (found.cost.level_ms, found.cost.expert_ms) == pytest.approx((1.5, 0.21))
    assert found.warnings == ()
    assert fit_consecutive(stream(noise=0.3), max_nodes=10).cost.max_nodes == 10


def test_a_tree_may_cost_more_than_its_nodes() -> None:
    found = fit_consecutive(stream(step=4.0))
    assert found.cost.intercepts_ms == pytest.approx([9, *(13 + 0.4 * k for k in range(1, 8))])
    assert (found.cost.level_ms, found.cost.expert_ms) == pytest.approx((1.5, 0.21))
    noisy = fit_consecutive(stream(step=4.0, noise=0.5)).cost.intercepts_ms
    assert noisy == pytest.approx([9, *(13 + 0.4 * k for k in range(1, 8))], abs=0.5)
    one = fit_consecutive(stream(step=4.0, largest=1))  # of two sizes, b1 is all that can be told
    assert one.cost.intercepts_ms[:2] == pytest.approx([9, 13.4]) and one.warnings == ()


def test_coefficients_are_never_negative() -> None:
    falling = [Probe(k, 1, f, 50 - k - f / 10) for k in range(8) for f in (10, 20, 30, 40)]
    found = fit_paper(falling)
    assert found.cost.expert_ms == 0
    assert "beta was fitted to zero" in " ".join(found.warnings)
    assert "b1 was fitted to zero" in " ".join(fit_consecutive([*falling, Probe(7, 2, 5, 50)]).warnings)


def test_what_does_not_vary_is_left_out_and_said() -> None:
    found = fit_consecutive(stream(levels=3))
    assert found.cost.level_ms == 0
    assert found.cost.intercepts_ms[0] == pytest.approx(9 + 1.5 * 3)
    assert found.warnings == ("every probe has levels = 3, so gamma is left at 0 and its cost is inside b0",)


def joined(found: Fit) -> str:
    return " ".join(found.warnings)


def test_warnings_are_sentences() -> None:
    few = [probe for probe in paper_probes() if probe.nodes != 3] + [p for p in paper_probes() if p.nodes == 3][:1]
    assert "size 3 has only 1 probe; its intercept b_3" in joined(fit_paper(few))
    assert "20 probes are few for" not in joined(fit_consecutive(stream(20)))
    assert "6 probes are few for 5 coefficients" in joined(fit_consecutive(stream(6)))
    near = [Probe(k, 1, 1000 + 10 * k + bump, 5.0 + bump) for k in range(8) for bump in (0, 0, 0, 1)]
    assert "apart poorly" in joined(fit_paper(near))
    wild = [Probe(p.nodes, p.levels, p.union, p.ms * (1 + 2 * (i % 2))) for i, p in enumerate(paper_probes())]
    assert "of the mean time" in joined(fit_paper(wild))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_paper([]), "no probes"),
        (lambda: fit_paper(paper_probes(), max_nodes=5), "a probe has 6 nodes; the fit is for 0..5"),
        (lambda: fit_paper([p for p in paper_probes() if p.nodes not in (2, 4)]), "no probe has 2 or 4 nodes, so b_2"),
        (lambda: fit_paper([Probe(k, 1, 9 * k, 5.0) for k in range(8) for _ in range(4)]), "beta cannot be told"),
        (lambda: fit_consecutive(stream(4)), "4 probes cannot fit five"),
        (lambda: fit_consecutive([Probe(k, k, 3 * k, 5.0) for k in range(8)]), "follow from each other"),
        (lambda: Probe(1, 1, 1, float("nan")), "a probe of 1 nodes took nan ms"),
        (lambda: Probe(1, 1, 1, -2.0), "took -2.0 ms"),
        (lambda: Probe(1, 1, -1, 2.0), "a probe has union = -1"),
    ],
)
def test_bad_probes(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
