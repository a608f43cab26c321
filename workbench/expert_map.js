// The experts of every layer as a canvas, layers down and experts across; a second canvas on top carries the lights.
const CELLS = ["idle", "hit", "miss", "ran", "hit_rejected", "miss_rejected", "ran_rejected", "saved"];
const GUTTER = 34;
const FOOT = 16;
const HEAD = 6;

// onPoint({layer, expert} or null); expert null means the whole layer.
function makeMap(box, { onPoint }) {
  const frame = document.createElement("div");
  frame.className = "sf-map";
  frame.tabIndex = 0;
  frame.setAttribute("role", "application"); // so that a screen reader leaves the arrow keys to it
  const base = document.createElement("canvas");
  const top = document.createElement("canvas");
  frame.append(base, top);
  box.append(frame);
  let size = { layers: 0, experts: 0, w: 1, h: 1 };
  let codes = new Uint8Array();
  let lights = null; // Uint8Array of bits to keep bright, or null
  let cursor = null;
  let colours = {};

  function readColours() {
    const style = getComputedStyle(frame);
    colours = Object.fromEntries(
      [...CELLS, "saved_line", "lit", "muted"].map((key) => [key, style.getPropertyValue(`--sf-${key.replace("_", "-")}`).trim()]),
    );
    colours.page = style.getPropertyValue("--jp-layout-color0").trim() || style.getPropertyValue("--sf-page").trim();
  }

  function fit(layers, experts, room) {
    const h0 = Math.max(3, Math.min(16, Math.floor(430 / Math.max(1, layers))));
    const w = Math.max(3, Math.min(16, 2 * h0, Math.floor((room - GUTTER) / Math.max(1, experts))));
    const h = Math.min(h0, 2 * w);
    size = { layers, experts, w, h };
    const [wide, high] = [GUTTER + w * experts + 2, HEAD + h * layers + FOOT];
    const sharp = window.devicePixelRatio || 1;
    for (const canvas of [base, top]) {
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
      canvas.width = Math.round(wide * sharp);
      canvas.height = Math.round(high * sharp);
      canvas.getContext("2d").setTransform(sharp, 0, 0, sharp, 0, HEAD * sharp);
    }
    frame.style.width = `${wide}px`;
    frame.style.height = `${high}px`;
  }

  const shaped = () => size.w >= 7 && size.h >= 7; // room for more than a colour

  function cell(pen, layer, expert, code) {
    const { w, h } = size;
    const gap = w >= 6 && h >= 6 ? 1 : w >= 4 && h >= 4 ? 0.5 : 0;
    const [x, y, wide, high] = [GUTTER + expert * w, layer * h, w - gap, h - gap];
    const name = CELLS[code];
    pen.fillStyle = colours[name === "saved" && shaped() ? "saved_line" : name];
    pen.fillRect(x, y, wide, high);
    if (!shaped()) return;
    if (name === "miss" || name === "miss_rejected") {
      pen.fillStyle = colours.page; // a notch, so that a miss is told from a hit without colour
      pen.beginPath();
      pen.moveTo(x + wide, y);
      pen.lineTo(x + wide, y + high * 0.55);
      pen.lineTo(x + wide - high * 0.55, y);
      pen.fill();
    } else if (name === "saved") {
      pen.fillStyle = colours.page;
      pen.fillRect(x + 2, y + 2, wide - 4, high - 4);
    }
  }

  function draw(layers, experts, room, next) {
    codes = next;
    readColours();
    fit(layers, experts, room);
    const pen = base.getContext("2d");
    pen.clearRect(0, -HEAD, base.width, base.height);
    const { w, h } = size;
    for (let layer = 0; layer < layers; layer++)
      for (let expert = 0; expert < experts; expert++) cell(pen, layer, expert, codes[layer * experts + expert]);
    pen.fillStyle = colours.muted;
    pen.font = "10px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const down = Math.ceil(13 / h);
    for (let layer = 0; layer < layers; layer += down) pen.fillText(`L${layer}`, GUTTER - 5, layer * h + h / 2);
    pen.textAlign = "center";
    const across = Math.ceil(24 / w / 8) * 8;
    for (let expert = 0; expert < experts; expert += across)
      pen.fillText(String(expert), GUTTER + expert * w + w / 2, layers * h + 9);
    drawLights();
  }

  function drawLights() {
    const pen = top.getContext("2d");
    pen.clearRect(0, -HEAD, top.width, top.height);
    const { layers, experts, w, h } = size;
    if (lights) {
      pen.globalAlpha = 0.78;
      pen.fillStyle = colours.page;
      pen.fillRect(GUTTER, 0, w * experts, h * layers);
      pen.globalAlpha = 1;
      for (let bit = 0; bit < layers * experts; bit++) {
        if (!((lights[bit >> 3] >> (bit & 7)) & 1)) continue;
        const [layer, expert] = [Math.floor(bit / experts), bit % experts];
        cell(pen, layer, expert, codes[bit]);
        if (w >= 5 && h >= 5) {
          pen.strokeStyle = colours.lit;
          pen.strokeRect(GUTTER + expert * w - 0.5, layer * h - 0.5, w, h);
        }
      }
    }
    if (cursor) {
      pen.strokeStyle = colours.lit;
      pen.lineWidth = 1.5;
      const left = cursor.expert === null ? GUTTER : GUTTER + cursor.expert * w;
      const wide = cursor.expert === null ? w * experts : w;
      pen.strokeRect(left - 1, cursor.layer * h - 1, wide + 2, h + 2);
      pen.lineWidth = 1;
    }
  }

  function light(bits) {
    lights = bits;
    drawLights();
  }

  function point(at) {
    if (cursor?.layer === at?.layer && cursor?.expert === at?.expert) return;
    cursor = at;
    drawLights();
    onPoint(at);
  }

  frame.addEventListener("pointermove", (event) => {
    const { left, top: up } = frame.getBoundingClientRect();
    const layer = Math.floor((event.clientY - up - HEAD) / size.h);
    const expert = Math.floor((event.clientX - left - GUTTER) / size.w);
    if (layer < 0 || layer >= size.layers || expert >= size.experts) point(null);
    else point({ layer, expert: expert < 0 ? null : expert });
  });
  frame.addEventListener("pointerleave", () => point(null));
  frame.addEventListener("blur", () => point(null));
  frame.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    const { layers, experts } = size;
    if (!layers) return;
    if (event.key in steps) {
      const [down, across] = steps[event.key];
      const { layer, expert } = cursor ?? { layer: -down, expert: -1 };
      const column = Math.max(-1, Math.min(experts - 1, (expert ?? -1) + across)); // -1 is the layer's own label
      point({ layer: Math.max(0, Math.min(layers - 1, layer + down)), expert: column < 0 ? null : column });
    } else if (event.key === "Escape") point(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return { draw, light, frame, shaped };
}
