// The draft tree as SVG: one group a node, reachable by pointer and keyboard. Text enters through textContent alone.
const SVG = "http://www.w3.org/2000/svg";
const PILL = 86;
const SMALLEST = 0.8; // scale at which a node can still be read
const STATES = {
  root: "pending token",
  accepted: "accepted",
  rejected: "selected, rejected",
  left_out: "drafted, left out",
  undrafted: "never drafted",
};
const MARKS = { accepted: "✓", rejected: "✕", left_out: "", undrafted: "", root: "" };

function shape(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// onPoint(node or null), onToggle(node), onReset(); node -1 is the root.
function makeTree(box, { onPoint, onToggle, onReset }) {
  const svg = shape("svg", { class: "sf-tree", role: "tree", "aria-label": "draft tree, levels from left to right" }, box);
  let groups = new Map();
  let cycle = null;

  function draw(next) {
    const focused = groups.size && svg.contains(document.activeElement);
    cycle = next;
    groups = new Map();
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${cycle.width} ${cycle.height}`);
    const edges = shape("g", { class: "sf-edges", "aria-hidden": "true" }, svg);
    const all = [{ ...cycle.root, id: -1, state: "root", p: 1, level: 0 }, ...cycle.nodes];
    const at = new Map(all.map((node) => [node.id, node]));
    for (const node of cycle.nodes) {
      const from = at.get(node.parent);
      const [x1, y1, x2, y2] = [from.x + PILL, from.y, node.x, node.y];
      const bend = (x1 + x2) / 2;
      shape("path", { d: `M${x1} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`, class: node.state }, edges);
    }
    for (const node of all) groups.set(node.id, pill(node));
    groups.get(-1).setAttribute("tabindex", "0");
    if (focused) focus(-1);
  }

  function pill(node) {
    const high = cycle.pill;
    const group = shape(
      "g",
      {
        class: `sf-node ${node.state}`,
        role: "treeitem",
        tabindex: "-1",
        transform: `translate(${node.x} ${node.y - high / 2})`,
        "data-node": node.id,
        "aria-level": node.level + 1,
      },
      svg,
    );
    shape("rect", { class: "sf-pill", width: PILL, height: high, rx: Math.min(6, high / 3) }, group);
    if (node.id >= 0) {
      const wide = Math.max(2, (PILL - 2) * (node.p ?? 0)); // the darker part of a node is its path probability
      shape("rect", { class: "sf-prob", x: 1, y: 1, width: wide.toFixed(1), height: high - 2, rx: 4 }, group);
    }
    const small = high < 18;
    const text = { x: 7, y: high / 2 + 3.6, class: small ? "sf-token small" : "sf-token" };
    shape("text", text, group, node.text);
    shape("text", { x: PILL - 5, y: high / 2 + 3.5, class: "sf-mark", "text-anchor": "end" }, group, MARKS[node.state]);
    shape("text", { x: PILL + 1, y: high / 2 - 3, class: "sf-badge" }, group, "");
    const chance = node.id < 0 ? "" : `, path probability ${(node.p ?? NaN).toFixed(3)}`;
    const label = `“${node.whole}”, ${STATES[node.state]}${chance}`;
    shape("title", {}, group, node.id < 0 ? label : `node ${node.id}: ${label}`);
    group.setAttribute("aria-label", node.id < 0 ? `root ${label}` : `node ${node.id} ${label}`);
    group.addEventListener("pointerenter", () => onPoint(node.id));
    group.addEventListener("pointerleave", () => onPoint(null));
    group.addEventListener("focus", () => {
      for (const [id, other] of groups) other.setAttribute("tabindex", id === node.id ? "0" : "-1");
      onPoint(node.id);
    });
    group.addEventListener("blur", () => onPoint(null));
    group.addEventListener("click", () => {
      focus(node.id);
      onToggle(node.id);
    });
    return group;
  }

  function focus(id) {
    groups.get(id)?.focus({ preventScroll: false });
  }

  svg.addEventListener("keydown", (event) => {
    const id = Number(event.target.closest("[data-node]")?.dataset.node);
    if (Number.isNaN(id)) return;
    const byRow = (nodes) => [...nodes].sort((a, b) => a.y - b.y);
    const node = cycle.nodes[id];
    const level = node ? byRow(cycle.nodes.filter((other) => other.level === node.level)) : [];
    const here = level.findIndex((other) => other.id === id);
    const moves = {
      ArrowRight: () => byRow(cycle.nodes.filter((other) => other.parent === id))[0]?.id,
      ArrowLeft: () => node?.parent,
      ArrowDown: () => level[here + 1]?.id,
      ArrowUp: () => level[here - 1]?.id,
      Home: () => -1,
      End: () => cycle.nodes.length - 1,
    };
    if (event.key in moves) {
      const to = moves[event.key]();
      if (to !== undefined) focus(to);
    } else if (event.key === "Enter" || event.key === " ") onToggle(id);
    else if (event.key === "Escape") onReset();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  // A tree that is a little too wide shrinks to `room` pixels; a much wider one is scrolled.
  function fit(room) {
    const scale = Math.min(1, Math.max(SMALLEST, room / cycle.width));
    svg.setAttribute("width", Math.floor(cycle.width * scale));
    svg.setAttribute("height", Math.ceil(cycle.height * scale));
  }

  // picked: set of node ids; path: nodes the target would accept of them; edited: they are not the run's own choice
  function mark(picked, path, edited) {
    for (const [id, group] of groups) {
      group.classList.toggle("picked", edited && picked.has(id));
      group.classList.toggle("would", edited && path.has(id));
      group.classList.toggle("unpicked", edited && id >= 0 && !picked.has(id));
      if (id >= 0) group.setAttribute("aria-selected", String(picked.has(id)));
    }
  }

  // lit: Map from node id to a badge text, or null to light nothing in particular
  function light(lit) {
    for (const [id, group] of groups) {
      group.classList.toggle("lit", !!lit && lit.has(id));
      group.classList.toggle("dim", !!lit && !lit.has(id));
      group.querySelector(".sf-badge").textContent = lit?.get(id) ?? "";
    }
  }

  return { draw, fit, mark, light };
}
