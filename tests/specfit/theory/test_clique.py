"""Proposition 2, first half: the exact selection decides CLIQUE."""

from __future__ import annotations

import random
from itertools import combinations

import networkx as nx
import pytest

from specfit.select import algorithm_1, corner
from specfit.theory import clique_instance, find_clique
from tests.pools import all_legal, ratio


def test_proposition_2_the_selection_decides_clique() -> None:
    rng = random.Random(30)
    answers = []
    for _ in range(150):
        graph = nx.gnp_random_graph(rng.randrange(2, 8), rng.random(), seed=rng.randrange(10**6))
        r = rng.randrange(2, len(graph) + 1)
        largest = max(len(clique) for clique in nx.find_cliques(graph))
        found = find_clique(graph.nodes, graph.edges, r)
        assert (found is not None) == (largest >= r)
        if found:
            assert len(found) == r
            assert all(graph.has_edge(a, b) for a, b in combinations(found, 2))
        answers.append(found is not None)
    assert 20 < sum(answers) < 130  # both directions were met


def test_proposition_2_a_clique_reaches_the_threshold_and_nothing_else_does() -> None:
    graph = nx.house_x_graph()
    for r in (2, 3, 4, 5):
        problem = clique_instance(graph.nodes, graph.edges, r)
        cliques = [
            set(c) for c in combinations(graph.nodes, r) if all(graph.has_edge(a, b) for a, b in combinations(c, 2))
        ]
        for nodes in all_legal(problem.state.pool, problem.max_nodes):
            covered = {vertex for node in nodes for vertex in problem.edges[node]}
            whole = len(nodes) == problem.max_nodes and covered in cliques
            value = ratio(problem.state, nodes, problem.cost)
            assert (value >= problem.threshold) == whole
            assert not whole or value == problem.threshold


def test_the_instance_is_the_papers() -> None:
    problem = clique_instance("abcd", ["ab", "bc", "ca", "cd", "ba"], 3)
    pool = problem.state.pool
    assert problem.edges == (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"))
    assert pool.parents == (-1,) * 4
    assert pool.path_probs == (pytest.approx(1 / 5),) * 4
    assert problem.state.routes.root == 0
    assert problem.max_nodes == 3
    chosen = algorithm_1(problem.state, problem.cost, max_nodes=3)
    assert corner(problem.state, chosen.nodes, problem.cost).ratio == problem.threshold
    assert find_clique("abcd", ["ab", "bc", "ca", "cd"], 3) == ("a", "b", "c")


def test_a_graph_without_edges_has_no_clique() -> None:
    assert find_clique(range(3), [], 2) is None


@pytest.mark.parametrize(
    ("edges", "r", "message"),
    [
        ([(0, 0)], 2, r"edge \(0, 0\)"),
        ([(0, 9)], 2, r"edge \(0, 9\)"),
        ([(0, 1)], 1, "r is 1"),
        ([(0, 1)], 4, "r is 4"),
    ],
)
def test_bad_graphs(edges: list[tuple[int, int]], r: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clique_instance(range(3), edges, r)
