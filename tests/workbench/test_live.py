"""A live run over the toy world, with a thread and without a browser."""

import gc
import threading
import time
import weakref

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.run_folder import load_run
from tests.toys import TOY_COST, ToyTarget, ToyWorld, toy_decoding
from workbench.live import LiveRun

WORLD = ToyWorld(0)


class Slow:
    """A decoding that takes its time over every cycle and says when it began one."""

    def __init__(self, decoding, pause):
        self._decoding, self._pause, self.begun = decoding, pause, 0

    def __getattr__(self, name):
        return getattr(self._decoding, name)

    def __iter__(self):
        for cycle in self._decoding:
            self.begun += 1
            time.sleep(self._pause)
            yield cycle


class ToyEngine:
    settings = {"slots_per_layer": 4, "cleared": False}

    def __init__(self, *, pause=0.005, fails=None):
        self.pause, self.fails, self.closed, self.decoding = pause, fails, False, None

    def decode(self, prompt, *, method, cost, routes, truth, max_new_tokens):
        if self.fails:
            raise self.fails
        target = ToyTarget(WORLD, slots=4)
        decoding = toy_decoding(WORLD, prompt, method=method, target=target, max_new_tokens=max_new_tokens, cost=cost)
        self.decoding = Slow(decoding, self.pause)
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
    assert live.status.value.startswith("Finished (limit): 60 tokens")
    assert live.side.view.record == live.run.requests[0].cycles[-1]  # the last state is always shown
    assert live.start_button.disabled is False and live.stop_button.disabled is True
    assert load_run(live.saved).requests[0].cycles == live.run.requests[0].cycles
    live.close()


def test_stop_ends_within_one_cycle_and_the_rest_stays_usable():
    engine = ToyEngine(pause=0.05)
    live = live_run(engine, max_new_tokens=1000)
    live.start()
    time.sleep(0.3)
    begun = engine.decoding.begun
    live.stop()
    assert live.wait(5)
    assert engine.decoding.begun <= begun + 1
    assert live.status.value.startswith("Stopped after") and not live.run.complete and live.saved is None
    live.limit.value = 20
    live.start()
    assert live.wait(30) and live.run.complete
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
    assert live.status.value.startswith("The run ended with an error.")
    assert "Traceback" not in live.status.value and "\u202e" not in live.status.value
    assert live.error is error and not live.start_button.disabled
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
    assert live.follow.value is False
    assert live.side.strip.at == 0
    live.stop()
    live.wait(10)
    live.close()


def test_running_the_cell_again_frees_the_old_engine_but_not_a_shared_one():
    first, second = ToyEngine(pause=0.05), ToyEngine()
    live = live_run(first, max_new_tokens=1000)
    live.start()
    time.sleep(0.1)
    again = live_run(second)
    assert first.closed and not live.running
    once_more = live_run(second)
    assert not second.closed
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
        live.slots.value = slots
        live.start()
        assert live.wait(30), live.status.value
    assert [slots for slots, _, _ in made] == [4, 6]
    assert made[0][2].closed
    live.close()
    assert made[1][2].closed


def test_no_question_is_said_and_cannot_be_started():
    live = LiveRun(ToyEngine(), [])
    assert live.start_button.disabled and "No question" in live.status.value
    assert repr(live) == repr(live)
    live.close()
