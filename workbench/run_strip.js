// The strip of a run: controls, a timeline of stage times with the expected rate, and the output text by cycle.
const STAGES = ["draft", "select", "verify", "commit"];
const HIGH = 84;
const SPEEDS = [1, 2, 5, 10];

function render({ model, el }) {
  const root = make("div", "specfit sf-strip", el);
  const notice = make("div", "sf-notice", root);
  notice.setAttribute("role", "status");
  const wishes = makeAsk(model, notice, () => {
    stop();
    wanted = null;
    draw();
  });
  const bar = make("div", "sf-bar", root);
  const name = make("span", "sf-title", bar);
  const button = (sign, label, act) => {
    const made = make("button", "sf-button", bar, sign);
    made.setAttribute("aria-label", label);
    made.title = label;
    made.addEventListener("click", act);
    return made;
  };
  button("|‹", "first cycle", () => go(0));
  button("‹", "one cycle back", () => go(at - 1));
  const play = button("▶", "play", () => (timer === null ? start() : stop()));
  button("›", "one cycle on", () => go(at + 1));
  const slider = make("input", "sf-slider", bar);
  slider.type = "range";
  slider.min = 0;
  slider.setAttribute("aria-label", "cycle");
  slider.addEventListener("input", () => go(Number(slider.value)));
  const speed = choices("speed", SPEEDS.map((n) => [n, `${n} a second`]), () => timer !== null && (stop(), start()));
  const question = choices("question", [], () => ask({ question: Number(question.value) }));
  const order = choices("which cycles", [], () => ask({ order: order.value }));
  const note = make("div", "sf-note", root);
  const place = make("div", "sf-readout", root);
  place.setAttribute("aria-live", "polite");
  const canvas = make("canvas", "sf-timeline", root);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "slider");
  canvas.setAttribute("aria-valuemin", "1");
  canvas.setAttribute("aria-label", "timeline of stage times; arrow keys move from cycle to cycle");
  const keys = make("div", "sf-legend", root);
  const prompt = make("details", "sf-prompt", root);
  make("summary", "", prompt, "prompt");
  const promptText = make("div", "sf-text", prompt);
  const text = make("div", "sf-text", root);
  text.tabIndex = 0;
  text.setAttribute("aria-label", "output text; arrow keys move from cycle to cycle");
  let [at, count, timer, under, spans, drawnText] = [0, 0, null, null, [], null];
  let wanted = null; // the position asked for last, until Python has turned to it

  function choices(label, entries, act) {
    const made = make("select", "sf-select", bar);
    made.setAttribute("aria-label", label);
    fill(made, entries);
    made.addEventListener("change", act);
    return made;
  }
  function fill(select, entries) {
    select.replaceChildren();
    for (const [value, words] of entries) make("option", "", select, words).value = value;
  }

  function ask(wish) {
    stop();
    wanted = null;
    wishes.ask({ ...wish, nth: Math.random() }); // the same wish twice is two wishes
  }

  function go(to) {
    const next = Math.max(0, Math.min(count - 1, to));
    if (!count || next === at) return;
    at = wanted = next;
    follow();
    wishes.ask({ at, nth: Math.random() });
  }

  function start() {
    if (count < 2) return;
    if (at === count - 1) go(0);
    timer = setInterval(() => {
      if (model.get("at") !== at) return; // the view has not caught up yet
      if (at >= count - 1) stop();
      else go(at + 1);
    }, 1000 / Number(speed.value));
    play.textContent = "⏸";
    play.setAttribute("aria-label", "pause");
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "play");
  }

  function floats(key) {
    const view = model.get(key);
    return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  }

  function drawTimeline() {
    const times = floats("times");
    const rates = floats("rates");
    count = rates.length;
    const sharp = window.devicePixelRatio || 1;
    const wide = Math.max(200, root.clientWidth - 6);
    canvas.style.width = `${wide}px`;
    canvas.width = Math.round(wide * sharp);
    canvas.height = Math.round(HIGH * sharp);
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, wide, HIGH);
    if (!count) return;
    const style = getComputedStyle(root);
    const colour = (key) => style.getPropertyValue(`--sf-${key}`).trim();
    const step = wide / count;
    let longest = 1e-9;
    for (let i = 0; i < count; i++) longest = Math.max(longest, total(times, i));
    for (let i = 0; i < count; i++) {
      let low = HIGH;
      for (let stage = 0; stage < 4; stage++) {
        const high = ((times[4 * i + stage] || 0) / longest) * (HIGH - 14);
        low -= high;
        pen.fillStyle = colour(`stage-${STAGES[stage]}`);
        pen.fillRect(i * step, low, Math.max(1, step - (step > 4 ? 1 : 0)), high);
      }
    }
    pen.strokeStyle = colour("muted");
    for (const place of model.get("breaks")) {
      pen.beginPath();
      pen.moveTo(place * step, 0);
      pen.lineTo(place * step, HIGH);
      pen.stroke();
    }
    const best = rates.reduce((most, rate) => (rate > most ? rate : most), 1e-9);
    pen.strokeStyle = colour("rejected");
    pen.lineWidth = 1.5;
    pen.beginPath();
    let drawing = false;
    rates.forEach((rate, i) => {
      if (Number.isNaN(rate)) return (drawing = false);
      const [x, y] = [(i + 0.5) * step, HIGH - 3 - (rate / best) * (HIGH - 10)];
      drawing ? pen.lineTo(x, y) : pen.moveTo(x, y);
      drawing = true;
    });
    pen.stroke();
    for (const [place, key] of [[under, "muted"], [at, "lit"]]) {
      if (place === null) continue;
      pen.strokeStyle = colour(key);
      pen.strokeRect(place * step - 0.5, 0.75, Math.max(3, step), HIGH - 1.5);
    }
    const rate = best > 1e-9 ? `expected rate R/T, up to ${best.toFixed(1)} tokens/s` : "";
    legend(keys, [...STAGES.map((stage) => [`sf-cell ${stage}`, stage]), ...(rate ? [["sf-cell rate", rate]] : [])], "");
    keys.append(`tallest bar ${longest.toFixed(1)} ms`);
  }
  function total(times, i) {
    return times[4 * i] + times[4 * i + 1] + times[4 * i + 2] + times[4 * i + 3];
  }

  function drawText() {
    const pieces = model.get("text");
    const owners = new Int32Array(floats("owners").buffer);
    const kinds = model.get("kinds");
    text.replaceChildren();
    spans = pieces.map((piece, i) => {
      const span = make("bdi", `sf-piece kind${kinds.getUint8(i)}`, text, piece);
      if (owners[i] >= 0) {
        span.dataset.at = owners[i];
        span.classList.add(owners[i] % 2 ? "odd" : "even");
      }
      return span;
    });
    text.hidden = !pieces.length;
    promptText.textContent = model.get("prompt");
    prompt.hidden = !model.get("prompt");
  }

  function follow() {
    slider.max = Math.max(0, count - 1);
    slider.value = at;
    slider.disabled = count < 2;
    const label = model.get("labels")[at] ?? "";
    place.textContent = count ? `${at + 1} of ${count}: ${label}` : "no cycle to show";
    for (const box of [slider, canvas]) box.setAttribute("aria-valuetext", place.textContent);
    canvas.setAttribute("aria-valuemax", count);
    canvas.setAttribute("aria-valuenow", at + 1);
    let first = null;
    for (const span of spans) {
      const now = span.dataset.at === String(at);
      span.classList.toggle("now", now);
      if (now && !first) first = span;
    }
    if (first) {
      const [box, line] = [text.getBoundingClientRect(), first.getBoundingClientRect()];
      if (line.top < box.top || line.bottom > box.bottom) text.scrollTop += line.top - box.top - box.height / 3;
    }
    drawTimeline();
  }

  function draw() {
    notice.textContent = model.get("notice");
    notice.hidden = !notice.textContent;
    note.textContent = model.get("note");
    note.hidden = !note.textContent;
    name.textContent = model.get("name");
    fill(question, [[-1, "all questions"], ...model.get("questions").map((words, i) => [i, words])]);
    question.value = model.get("question");
    question.hidden = model.get("questions").length < 2;
    fill(order, Object.entries(model.get("orders")));
    order.value = model.get("order");
    if (wanted === null || wanted === model.get("at")) [at, wanted] = [model.get("at"), null];
    drawTimeline();
    bar.hidden = !count && order.value === "all" && question.value === "-1"; // nothing to walk through, nor to undo
    for (const part of [canvas, keys, place]) part.hidden = !count;
    if (drawnText !== model.get("text")) drawText();
    drawnText = model.get("text");
    follow();
  }

  const positionAt = (event) => {
    const { left, width } = canvas.getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - left) / width) * count)));
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    stop();
    go(positionAt(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) go(positionAt(event));
    const next = positionAt(event);
    if (next === under) return;
    under = next;
    drawTimeline();
    const times = floats("times");
    const parts = STAGES.map((stage, i) => `${stage} ${times[4 * under + i].toFixed(2)}`).join(", ");
    place.textContent = `${under + 1} of ${count}: ${model.get("labels")[under] ?? ""} · ${parts} ms`;
  });
  canvas.addEventListener("pointerleave", () => {
    under = null;
    follow();
  });
  text.addEventListener("click", (event) => {
    const owner = event.target.closest?.("[data-at]")?.dataset.at;
    if (owner !== undefined) (stop(), go(Number(owner)));
  });
  text.addEventListener("pointerover", (event) => {
    const owner = event.target.closest?.("[data-at]")?.dataset.at;
    under = owner === undefined ? null : Number(owner);
    for (const span of spans) span.classList.toggle("under", owner !== undefined && span.dataset.at === owner);
    drawTimeline();
  });
  text.addEventListener("pointerleave", () => {
    under = null;
    for (const span of spans) span.classList.remove("under");
    drawTimeline();
  });
  for (const box of [canvas, text])
    box.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: count - 1, PageDown: at + 10, PageUp: at - 10 };
      if (event.key in moves) go(moves[event.key]);
      else if (event.key === " " || event.key === "Enter") timer === null ? start() : stop();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });

  const sizes = new ResizeObserver(drawTimeline);
  sizes.observe(root);
  const themes = new MutationObserver(drawTimeline);
  themes.observe(document.body, { attributes: true });
  model.on("change:seq", draw);
  draw();
  return () => {
    stop();
    wishes.stop();
    model.off("change:seq", draw);
    sizes.disconnect();
    themes.disconnect();
  };
}

export default { render };
