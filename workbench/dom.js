// Small pieces of a page that the widgets share. Text enters through textContent alone.
function make(tag, name, parent, text) {
  const made = document.createElement(tag);
  made.className = name;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function legend(box, entries, note) {
  box.replaceChildren();
  for (const [name, word] of entries) {
    const item = make("span", "sf-item", box);
    make("span", name, item);
    item.append(word);
  }
  if (note) make("div", "sf-note", box, note);
}

const PATIENCE_MS = 4000;
const NO_ANSWER = "The kernel does not answer: it is busy, or it was restarted and no longer knows this view. If it is idle, run this cell again.";

// Sends a wish to Python, which answers by another `seq`. Where no answer comes, onSilence() draws what Python last
// said, and a notice says so. Call stop() at the end.
function makeAsk(model, notice, onSilence) {
  let waiting = null;
  const stop = () => clearTimeout(waiting);
  function ask(wish) {
    stop();
    const since = model.get("seq");
    model.set("asked", wish);
    model.save_changes();
    waiting = setTimeout(() => {
      if (model.get("seq") !== since) return;
      onSilence();
      notice.textContent = NO_ANSWER; // the next answer draws the notice anew
      notice.hidden = false;
    }, PATIENCE_MS);
  }
  return { ask, stop };
}
