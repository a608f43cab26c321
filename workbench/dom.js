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
