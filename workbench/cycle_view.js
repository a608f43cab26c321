// Joins the draft tree and the expert map of one cycle: pointing at either lights the other, clicking nodes asks what
// another subtree would have been worth. Numbers come from Python; this file adds and compares nothing but bits.
function render({ model, el }) {
  const root = make("div", "specfit sf-cycle", el);
  const title = make("div", "sf-title", root);
  const notice = make("div", "sf-notice", root);
  notice.setAttribute("role", "status");
  const body = make("div", "sf-body", root);
  const left = make("div", "sf-left", body);
  const right = make("div", "sf-right", body);
  const treeBox = make("div", "sf-scroll", left);
  const states = make("div", "sf-legend", left);
  const mapBox = make("div", "sf-scroll", right);
  const cells = make("div", "sf-legend", right);
  const readout = make("div", "sf-readout", root);
  readout.setAttribute("aria-live", "polite");
  const choices = make("div", "sf-choices", root);
  const table = make("table", "sf-table", choices);
  const reset = make("button", "sf-button", choices, "Back to this run's choice");
  const told = make("div", "sf-note sf-told", root);
  const summary = make("div", "sf-summary", root);
  const wishes = makeAsk(model, notice, () => {
    wanted = null;
    drawAll();
  });
  let cycle = null;
  let drawn = null;
  let picks = [];
  let wanted = null; // the number of the wish asked last, until Python has answered it

  const tree = makeTree(treeBox, { onPoint: pointNode, onToggle: toggle, onReset: restore });
  const map = makeMap(mapBox, { onPoint: pointCell });
  reset.addEventListener("click", restore);

  function rowBits(node) {
    const view = model.get("bitmaps");
    const width = Math.ceil((cycle.layers * cycle.experts) / 8);
    return new Uint8Array(view.buffer, view.byteOffset + (1 + node) * width, width);
  }
  const has = (bits, bit) => (bits[bit >> 3] >> (bit & 7)) & 1;
  const drafted = () => [-1, ...cycle.nodes.filter((node) => node.id < cycle.drafted).map((node) => node.id)];
  const named = (id) => (id < 0 ? "root" : `node ${id} “${cycle.nodes[id].text}”`);

  function pointNode(id) {
    tree.light(null);
    if (id === null || id >= cycle.drafted) {
      map.light(null);
      say(id === null ? "" : `${named(id)}: never drafted, the drafter stopped before this level`);
      return;
    }
    const bits = rowBits(id);
    const rootBits = rowBits(-1);
    let [own, added] = [0, 0];
    for (let bit = 0; bit < cycle.layers * cycle.experts; bit++) {
      own += has(bits, bit);
      added += has(bits, bit) & ~has(rootBits, bit);
    }
    map.light(own ? bits : null);
    const node = cycle.nodes[id];
    const chance = node ? `, path probability ${(node.p ?? NaN).toFixed(3)}` : "";
    const experts = own ? `${own} experts, ${added} of them beyond the root's` : "routes not recorded";
    say(`${named(id)}: ${STATES[node ? node.state : "root"]}${chance}; ${id < 0 ? `${own} experts` : experts}`);
  }

  function pointCell(at) {
    map.light(null);
    if (at === null) {
      tree.light(null);
      say("");
    } else if (at.expert === null) {
      const rootBits = rowBits(-1);
      const adds = (id) => countBits(at.layer, (bit) => has(rowBits(id), bit) && !has(rootBits, bit));
      tree.light(new Map(drafted().map((id) => [id, id < 0 ? 0 : adds(id)]).filter(([, n]) => n).map(([id, n]) => [id, `+${n}`])));
      const codes = model.get("cells");
      const kinds = CELLS.map((_, code) => countBits(at.layer, (bit) => codes.getUint8(bit) === code));
      const runs = kinds.slice(1, 7).reduce((sum, n) => sum + n, 0);
      say(`layer ${at.layer}: ${runs} of ${cycle.experts} experts run (${kinds[1] + kinds[4]} hits, ${kinds[2] + kinds[5]} misses), ${kinds[7]} saved; the nodes that add experts are lit`);
    } else {
      const bit = at.layer * cycle.experts + at.expert;
      const users = drafted().filter((id) => has(rowBits(id), bit));
      tree.light(new Map(users.map((id) => [id, ""])));
      const code = model.get("cells").getUint8(bit);
      const by = users.length ? `needed by ${users.map(named).join(", ")}` : "no drafted node needs it";
      say(`layer ${at.layer}, expert ${at.expert}: ${cellWords(CELLS[code])}; ${by}`);
    }
  }

  function countBits(layer, test) {
    let count = 0;
    for (let expert = 0; expert < cycle.experts; expert++) count += test(layer * cycle.experts + expert) ? 1 : 0;
    return count;
  }
  const cellWords = (name) => model.get("words").cells[name];
  const say = (text) => (readout.textContent = text || "\u00a0");

  function toggle(id) {
    if (id < 0) return;
    if (id >= cycle.drafted) return say(`${named(id)} was never drafted, so no tree can hold it`);
    const picked = new Set(picks);
    const below = (node) => {
      for (let at = node; at >= 0; at = cycle.nodes[at].parent) if (at === id) return true;
      return false;
    };
    if (picked.has(id)) for (const node of [...picked]) below(node) && picked.delete(node);
    else for (let at = id; at >= 0; at = cycle.nodes[at].parent) picked.add(at);
    const limit = model.get("max_nodes");
    if (picked.size > limit) return say(`a legal tree has at most ${limit} nodes (K); leave one out first`);
    choose([...picked].sort((a, b) => a - b));
  }

  function restore() {
    choose(cycle.chosen);
  }

  function choose(nodes) {
    if (nodes.join() === picks.join()) return; // nothing to ask, so no answer to wait for
    picks = nodes; // the answer takes a moment, and the next click may come before it
    wanted = Math.random();
    wishes.ask({ nodes, seq: model.get("seq"), nth: wanted });
    tree.mark(new Set(nodes), new Set(), nodes.join() !== cycle.chosen.join());
  }

  function drawAll() {
    notice.textContent = model.get("notice");
    notice.hidden = !notice.textContent;
    const next = model.get("cycle");
    const empty = !next || !next.root;
    for (const part of [title, body, readout, choices, told, summary]) part.hidden = empty;
    if (empty) return;
    cycle = next;
    if (drawn !== cycle) {
      tree.draw(cycle);
      title.textContent = cycle.title;
      pairs(summary, cycle.summary, cycle.committed);
      say("");
    }
    const shown = model.get("shown");
    if (drawn !== cycle || model.get("answered") === wanted) wanted = null;
    if (wanted === null) picks = model.get("nodes"); // else this answers an earlier click than the last
    drawn = cycle;
    tree.mark(new Set(picks), new Set(shown.path), shown.edited);
    drawTable(table, model.get("words").columns, shown.rows);
    reset.hidden = !shown.edited;
    drawMap();
    const present = new Set(["root", ...cycle.nodes.map((node) => node.state)]);
    const keys = Object.entries(STATES).filter(([key]) => present.has(key));
    legend(states, keys.map(([key, word]) => [`sf-key ${key}`, word]));
    const counts = Object.entries(shown.counts).filter(([key, count]) => key !== "idle" && count);
    legend(cells, counts.map(([key, count]) => [`sf-cell ${key}`, `${cellWords(key)} ${count}`]), cycle.routes);
    told.textContent = shown.note;
  }

  function drawMap() {
    if (!cycle) return;
    const wide = root.clientWidth || 900;
    tree.fit(wide - 8);
    const beside = wide - Math.max(cycle.width, 340) - 60;
    const view = model.get("cells");
    const codes = new Uint8Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
    const room = beside >= Math.max(320, Math.min(400, 3 * cycle.experts + GUTTER)) ? beside : wide - 10;
    states.style.maxWidth = `${Math.max(cycle.width, 340)}px`;
    cells.style.maxWidth = `${Math.max(300, Math.min(room, 700))}px`;
    map.draw(cycle.layers, cycle.experts, room, codes);
    cells.classList.toggle("sf-shaped", map.shaped());
    map.frame.setAttribute("aria-label", `experts, ${cycle.layers} layers of ${cycle.experts}; arrow keys move`);
  }

  const sizes = new ResizeObserver(drawMap);
  sizes.observe(root);
  const themes = new MutationObserver(drawMap);
  themes.observe(document.body, { attributes: true });
  model.on("change:seq", drawAll);
  drawAll();
  return () => {
    wishes.stop();
    model.off("change:seq", drawAll);
    sizes.disconnect();
    themes.disconnect();
  };
}

function drawTable(table, columns, rows) {
  table.replaceChildren();
  const head = make("tr", "", make("thead", "", table));
  table.setAttribute("aria-label", "this run's tree beside others");
  for (const name of columns) {
    const cell = make("th", "", head, name);
    cell.scope = "col";
    if (!name) cell.setAttribute("aria-label", "tree");
  }
  const body = make("tbody", "", table);
  for (const [name, ...values] of rows) {
    const row = make("tr", name === "your tree" ? "sf-yours" : "", body);
    make("th", "", row, name).scope = "row";
    for (const value of values) make("td", "", row, value);
  }
}

function pairs(list, entries, committed) {
  list.replaceChildren();
  for (const [name, value] of entries) {
    const pair = make("div", "sf-pair", list);
    make("span", "sf-name", pair, name);
    make("span", "sf-value", pair, value);
    if (name === "committed") for (const token of committed) make("bdi", "sf-chip", pair, token);
  }
}

export default { render };
