import json
import time
from dataclasses import replace

import numpy as np
import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.run_folder import save_run
from tests.toys import TOY_COST, toy_run
from tests.workbench.worlds import ODD
from workbench.player import CyclePlayer
from workbench.run_strip import ACCEPTED, OWN, PREFILL, output_spans

RUN = toy_run(SPECFIT)


def ask(player, side=0, **wish):
    """What the browser sends."""
    strip = player.sides[side].strip
    strip._handle_msg({"content": {"data": {"method": "update", "state": {"asked": wish}}}, "buffers": []})


def test_it_opens_a_folder_a_record_and_lists(tmp_path):
    save_run(tmp_path / "run", RUN)
    for source in (tmp_path / "run", str(tmp_path / "run"), RUN, list(RUN.requests)):
        assert CyclePlayer(source).cycle == RUN.requests[0].cycles[0]
    player = CyclePlayer(list(RUN.requests[0].cycles), tokens=RUN.tokens)
    assert player.cycle == RUN.requests[0].cycles[0]
    assert "".join(player.sides[0].strip.text).startswith("t")


def test_it_steps_scrubs_and_filters_as_asked():
    player = CyclePlayer(RUN, cost=TOY_COST)
    ask(player, at=5)
    assert player.cycle.index == 5 and player.view.record is player.cycle
    ask(player, at=10_000)
    assert player.sides[0].strip.at == 38
    ask(player, question=1)
    assert player.request is RUN.requests[1] and player.cycle.index == 0
    assert len(player.sides[0].strip.rates) == 4 * len(RUN.requests[1].cycles)
    ask(player, order="gap", question=-1)
    from workbench.run_facts import rates

    gaps = [
        abs(r.run - r.eagle3)
        for r in (rates(player.sides[0].cycles[n][2], TOY_COST, 7) for n in player.sides[0]._order)
    ]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] > 0


def test_a_filter_that_the_run_cannot_answer_says_why():
    player = CyclePlayer(RUN)
    ask(player, order="ar")
    assert "no cost coefficients" in player.sides[0].strip.notice
    assert player.sides[0].strip.order == "all" and player.cycle is not None


def test_a_filter_says_in_which_time_it_decides():
    player = CyclePlayer(RUN, cost=TOY_COST)
    strip = player.sides[0].strip
    assert strip.note == ""
    for order in ("ar", "gap"):
        ask(player, order=order)
        assert strip.note.startswith(f"{len(player.sides[0]._order)} cycles.") and "not measured times" in strip.note
    ask(player, order="all")
    assert strip.note == ""


def test_two_runs_move_along_the_same_text():
    player = CyclePlayer(RUN, toy_run(EAGLE3), cost=TOY_COST)
    for at in (0, 7, 20, 38):
        ask(player, at=at)
        mine, other = player.sides[0].here, player.sides[1].here
        assert mine[1].request_id == other[1].request_id
        assert other[2].prefix_length <= mine[2].prefix_length
    ask(player, side=1, at=3)
    assert player.sides[0].here[2].prefix_length <= player.sides[1].here[2].prefix_length


def test_a_deeper_pool_of_the_other_run_shows_what_was_never_drafted():
    costly = replace(TOY_COST, level_ms=6.0)
    run = toy_run(SPECFIT)
    cut = []
    for cycle in run.requests[0].cycles:
        keep = 2 if not cycle.selection.nodes or max(cycle.selection.nodes) < 2 else None
        cut.append(cycle if keep is None else replace(cycle, pool=cycle.pool.prefix(2)))
    assert costly.level_ms
    player = CyclePlayer([run.requests[0]], [toy_run(EAGLE3).requests[0]])
    assert player.view.cycle["drafted"] == len(player.cycle.pool)


def test_every_output_token_has_its_cycle():
    request = RUN.requests[0]
    text, owners, kinds = output_spans(request, RUN.tokens, {c.index: c.index for c in request.cycles})
    assert len(text) == len(owners) == len(request.output_tokens)
    assert kinds[0] == PREFILL and owners[0] == -1
    at = 1
    for cycle in request.cycles:
        assert (owners[at : at + cycle.committed] == cycle.index).all()
        expected = [ACCEPTED] * len(cycle.accepted) + [OWN] * (cycle.committed - len(cycle.accepted))
        assert list(kinds[at : at + cycle.committed]) == expected
        at += cycle.committed


@pytest.mark.parametrize("source", ["nowhere", "", 5, [], [1], None])
def test_what_is_no_run_shows_as_a_sentence(source, tmp_path):
    player = CyclePlayer(str(tmp_path / source) if isinstance(source, str) else source or [])
    notice = player.sides[0].strip.notice
    assert len(notice) > 20 and "Traceback" not in notice and player.cycle is None
    assert not player.view.notice  # once is enough
    player.filter("ar")
    assert player.sides[0].strip.notice == notice
    repr(player), player._repr_mimebundle_()


def test_a_run_cut_short_opens_and_says_so(tmp_path):
    save_run(tmp_path / "run", replace(RUN, complete=False))
    player = CyclePlayer(tmp_path / "run")
    assert "not complete" in player.sides[0].strip.notice
    assert player.cycle is not None


def test_another_version_is_one_sentence(tmp_path):
    save_run(tmp_path / "run", RUN)
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**header, "version": 99}))
    assert "99" in CyclePlayer(tmp_path / "run").sides[0].strip.notice


def test_a_run_without_cycles_says_so():
    empty = replace(RUN, requests=(replace(RUN.requests[0], cycles=(), output_tokens=(3,)),))
    player = CyclePlayer(empty)
    assert "no decode cycle" in player.sides[0].strip.notice and player.cycle is None
    assert CyclePlayer(toy_run(AR)).cycle.pool.levels == 0


def test_hostile_names_and_texts_are_signs():
    odd = replace(RUN, tokens=ODD, requests=(replace(RUN.requests[0], question_id="<b>\u202e\n", category="<i>\x00"),))
    player = CyclePlayer(odd)
    for text in (*player.sides[0].strip.text, *player.sides[0].strip.questions, *player.sides[0].strip.labels):
        assert "\u202e" not in text and "\x00" not in text
        text.encode("utf-8")


def test_a_thousand_cycles_open_within_two_seconds(tmp_path):
    run = toy_run(SPECFIT, requests=26, tokens=130)
    assert len(run.cycles()) >= 1000
    save_run(tmp_path / "run", run)
    start = time.perf_counter()
    player = CyclePlayer(tmp_path / "run")
    assert player.cycle is not None
    assert time.perf_counter() - start < 2
    assert np.frombuffer(player.sides[0].strip.times, np.float32).size == 4 * len(run.cycles())


def test_closing_closes_everything():
    import ipywidgets

    registry = ipywidgets.widgets.widget._instances
    before = set(registry)
    player = CyclePlayer(RUN, toy_run(EAGLE3))
    player.close()
    assert not set(registry) - before
