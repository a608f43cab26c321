"""A live run over the toy world, with a thread and without a browser."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.run_folder import load_run
from tests.toys import TOY_COST, ToyTarget, ToyWorld, toy_decoding
from workbench import live_current, run_side
from workbench.live import LiveRun
from workbench.player import CyclePlayer

WORLD = ToyWorld(0)
ROOT = Path(__file__).parents[2]


class Slow:
    """A decoding that takes its time over every cycle and says when it began one."""

    def __init__(self, decoding, pause, breaks_after):
        self._decoding, self._pause, self.begun, self.breaks_after = decoding, pause, 0, breaks_after

    def __getattr__(self, name):
        return getattr(self._decoding, name)

    def __iter__(self):
        for cycle in self._decoding:
            if self.begun == self.breaks_after:
                raise RuntimeError("the link is gone")
            self.begun += 1
            time.sleep(self._pause)
            yield cycle


class ToyEngine:
    settings = {"slots_per_layer": 4, "cleared": False}

    def __init__(self, *, pause=0.005, fails=None, breaks_after=None):
        self.pause, self.fails, self.breaks_after = pause, fails, breaks_after
        self.closed, self.decoding = False, None

    def decode(self, prompt, *, method, cost, routes, truth, max_new_tokens):
        if self.fails:
            raise self.fails
        target = ToyTarget(WORLD, slots=4)
        decoding = toy_decoding(WORLD, prompt, method=method, target=target, max_new_tokens=max_new_tokens, cost=cost)
        self.decoding = Slow(decoding, self.pause, self.breaks_after)
        return self.decoding

    def close(self):
        self.closed = True


def live_run(engine=None, **more):
    return LiveRun(engine or ToyEngine(), [("one", (1, 2, 3))], **{"cost": TOY_COST, "max_new_tokens": 60, **more})


def test_the_cell_returns_at_once_and_the_run_ends_as_plain_decoding_does(tmp_path):
    live = live_run(folder=tmp_path)
    start = time.perf_counter()
    live.start()
    assert time.perf_counter() - start < 0.5
    assert live.wait(30)
    assert live.run.requests[0].output_tokens == tuple(WORLD.greedy((1, 2, 3), 60))
    assert live.controls.status.value.startswith("Finished (limit): 60 tokens")
    assert live.side.view.record == live.run.requests[0].cycles[-1]  # the last state is always shown
    assert live.controls.start_button.disabled is False and live.controls.stop_button.disabled is True
    assert load_run(live.saved).requests[0].cycles == live.run.requests[0].cycles
    live.close()


def test_stop_ends_within_one_cycle_and_the_rest_stays_usable(tmp_path):
    engine = ToyEngine(pause=0.05)
    live = live_run(engine, max_new_tokens=1000, folder=tmp_path)
    live.start()
    time.sleep(0.3)
    begun = engine.decoding.begun
    live.stop()
    assert live.wait(5)
    assert engine.decoding.begun <= begun + 1
    assert live.controls.status.value.startswith("Stopped after") and not live.run.complete
    kept = load_run(live.saved)  # marked as cut short, and says so where it is opened
    assert not kept.complete and kept.requests[0].stop_reason == "stopped"
    assert kept.cycles()[-1][1] == live.run.cycles()[-1][1]
    player = CyclePlayer(live.saved)
    assert "cut short: it was stopped after" in player.sides[0].strip.notice and player.cycle is not None
    player.close()
    live.controls.limit.value = 20
    live.start()
    assert live.wait(30) and live.run.complete
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live-001-specfit", "live-002-specfit"]
    live.close()
    with pytest.raises(ValueError, match="run its cell again"):
        live.start()


def test_an_error_in_the_middle_keeps_what_was_decoded(tmp_path):
    live = live_run(ToyEngine(breaks_after=5), folder=tmp_path)
    live.start()
    assert live.wait(30)
    assert "the link is gone" in live.controls.status.value and "is saved in live-001" in live.controls.status.value
    kept = load_run(live.saved)
    assert len(kept.cycles()) == 5 and not kept.complete and kept.requests[0].stop_reason == "error"
    live.close()


def test_a_folder_that_takes_nothing_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    live = live_run(folder=tmp_path / "file")
    live.start()
    assert live.wait(30)
    assert live.controls.status.value.startswith("The run ended with an error: ") and live.saved is None
    assert live.run.complete  # it is on the screen all the same
    live.close()


def test_a_start_while_running_starts_nothing():
    live = live_run(ToyEngine(pause=0.03))
    live.start()
    first = live._thread
    live.start()
    assert live._thread is first
    live.close()


@pytest.mark.parametrize("error", [ValueError("the prompt is too long"), RuntimeError("boom\u202e"), MemoryError()])
def test_an_error_is_a_sentence_in_the_widget(error):
    live = live_run(ToyEngine(fails=error))
    live.start()
    live.wait(10)
    assert live.controls.status.value.startswith("The run ended with an error: ")
    assert "Traceback" not in live.controls.status.value and "\u202e" not in live.controls.status.value
    assert live.error is error and not live.controls.start_button.disabled
    live.close()


def test_thousands_of_cycles_a_second_are_at_most_ten_drawings_a_second():
    live = live_run(ToyEngine(pause=0.0), max_new_tokens=1500, methods=(AR,))
    start = time.perf_counter()
    live.start()
    assert live.wait(60)
    took = time.perf_counter() - start
    assert live.drawings <= took * 10 + 2
    assert len(live.run.cycles()) == 1499
    assert len(live.side.strip.rates) == 4 * 1499
    live.close()


def test_walking_back_lets_go_of_the_newest_cycle():
    live = live_run(ToyEngine(pause=0.02), max_new_tokens=100)
    live.start()
    time.sleep(0.5)
    live.side.strip.asked = {"at": 0}
    assert live.controls.follow.value is False
    assert live.side.strip.at == 0
    live.stop()
    live.wait(10)
    live.close()


def test_a_click_while_the_worker_draws_is_not_overruled(monkeypatch):
    drawing, seen = threading.Event(), run_side.stage_times

    def slow(run):
        if threading.current_thread() is not threading.main_thread() and not drawing.is_set():
            drawing.set()
            time.sleep(0.3)
        return seen(run)

    live = live_run(ToyEngine(pause=0.02), max_new_tokens=20_000)
    live.start()
    while live.drawings < 3:
        time.sleep(0.02)
    monkeypatch.setattr(run_side, "stage_times", slow)
    assert drawing.wait(20)
    live.side.strip.asked = {"at": 0}
    assert live.side.strip.at == 0
    drawn = live.drawings
    while live.drawings < drawn + 2:
        time.sleep(0.02)
    assert live.side.strip.at == 0 and live.controls.follow.value is False
    assert live.side.view.record.index == 0
    live.stop()
    assert live.wait(10)
    live.close()


def test_running_the_cell_again_frees_the_old_engine_but_not_a_shared_one(monkeypatch):
    monkeypatch.setattr(live_current, "GRACE_S", 0.5)
    first, second = ToyEngine(pause=0.05), ToyEngine()
    live = live_run(first, max_new_tokens=1000)
    live.start()
    time.sleep(0.1)
    again = live_run(second)
    assert first.closed and not live.running
    once_more = live_run(second)
    assert not second.closed
    assert again.comm is not None  # a page may still be loading it
    assert "newer live run" in again.controls.status.value and again.controls.start_button.disabled
    time.sleep(1)
    assert live.comm is None and again.comm is None and not second.closed
    gone = weakref.ref(live)
    del live, again
    gc.collect()
    assert gone() is None
    assert [t for t in threading.enumerate() if t.name == "specfit live run"] == []
    once_more.close()


def test_slots_and_link_load_another_engine_when_they_change():
    made = []

    def make(slots, link_ms):
        made.append((slots, link_ms, ToyEngine(pause=0)))
        return made[-1][2]

    live = live_run(make, slots_per_layer=4, methods=(EAGLE3, SPECFIT))
    for slots in (4, 4, 6):
        live.controls.slots.value = slots
        live.start()
        assert live.wait(30), live.controls.status.value
    assert [slots for slots, _, _ in made] == [4, 6]
    assert made[0][2].closed
    live.close()
    assert made[1][2].closed


def test_no_question_is_said_and_cannot_be_started():
    live = LiveRun(ToyEngine(), [])
    assert live.controls.start_button.disabled and "No question" in live.controls.status.value
    assert repr(live) == repr(live)
    live.close()


def test_an_interpreter_that_ends_in_the_middle_of_a_run_ends_in_peace(tmp_path):
    code = """
import time
from tests.workbench.test_live import ToyEngine, live_run
live = live_run(ToyEngine(pause=0.02), max_new_tokens=100_000)
live.start()
while live.run is None:
    time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_second_run_of_a_question_records_no_second_atlas():
    made = []

    def atlas(engine, prompt, max_new_tokens):
        made.append(max_new_tokens)
        return SimpleNamespace(truth=None)

    live = live_run(atlas=atlas, methods=(AR,))
    for limit in (20, 10, 30):
        live.controls.limit.value = limit
        live.start()
        assert live.wait(30) and live.error is None
    assert made == [20, 30]
    live.close()


def test_stop_while_routes_are_recorded_begins_no_run():
    def atlas(engine, prompt, max_new_tokens):
        live.stop()
        return SimpleNamespace(truth=None)

    live = live_run(atlas=atlas, methods=(AR,))
    live.start()
    assert live.wait(30) and live.error is None and live.run is None
    assert live.controls.status.value.count("Stopped before the run began") == 1
    live.close()


def test_a_freed_live_run_keeps_its_views_and_loads_again():
    made = []

    def make(slots, link_ms):
        made.append(ToyEngine(pause=0))
        return made[-1]

    live = live_run(make)
    for number in (1, 2):
        live.start()
        assert live.wait(30) and live.run.complete
        live.free()
        assert len(made) == number and made[-1].closed and live.comm is not None
    live.close()
    given = live_run(ToyEngine())
    given.free()
    given.start()
    assert given.wait(10) and "was freed; run its cell again" in given.controls.status.value
    given.close()
