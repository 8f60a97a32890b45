// The flame graph: a step by part of the loop, place, what runs there, and the innermost op, from the outermost down.

const FLAME_ROW = 19,
  FLAME_MOST_HEIGHT = 640,
  FLAME_FROM = 0.4;

/** The nodes of the tree with their places along x; parents stand before their children. */
class FlameModel {
  constructor(data) {
    this.names = data.names;
    this.categories = data.categories;
    this.nameId = decodeColumn(data.name_id, Uint32Array);
    this.parent = decodeColumn(data.parent, Int32Array);
    this.time = decodeColumn(data.time_ns, Float64Array);
    this.category = decodeColumn(data.category, Uint8Array);
    this.paragraphs = new Map(data.places);
    this.count = this.parent.length;
    this.place();
  }

  place() {
    const { count, parent, time } = this;
    this.x = new Float64Array(count);
    this.depth = new Uint16Array(count);
    this.children = Array.from({ length: count }, () => []);
    this.roots = [];
    const used = new Float64Array(count);
    let end = 0;
    for (let i = 0; i < count; i++) {
      const above = parent[i];
      if (above < 0) {
        this.x[i] = end;
        end += time[i];
        this.roots.push(i);
      } else {
        this.x[i] = this.x[above] + used[above];
        used[above] += time[i];
        this.depth[i] = this.depth[above] + 1;
        this.children[above].push(i);
      }
    }
    this.total = end;
    this.own = Float64Array.from(time, (ns, i) => Math.max(ns - used[i], 0));
    this.levels = this.depth.reduce((most, depth) => Math.max(most, depth), 0) + 1;
  }

  nameOf(node) {
    return this.names[this.nameId[node]];
  }

  rootOf(node) {
    while (this.parent[node] >= 0) node = this.parent[node];
    return node;
  }

  /** What the tip says of a node. */
  describe(node) {
    return [
      this.nameOf(node),
      `${formatDuration(this.time[node])} a step (${formatShare(this.time[node] / this.total)}), ${formatDuration(this.own[node])} in itself`,
      `${categoryLabel(this.categories[this.category[node]])}, ${this.nameOf(this.rootOf(node))}`,
      this.paragraphs.has(node) ? "Click or Enter: what is known of it" : "",
    ];
  }

  cursorOn(node) {
    if (node < 0) return "default";
    return this.paragraphs.has(node) ? "pointer" : "zoom-in";
  }

  /** Go to the paragraph on a place; false where there is none. */
  leadTo(node) {
    const number = this.paragraphs.get(node);
    if (number === undefined) return false;
    hideTip();
    location.hash = `#place-${number}`;
    document.getElementById(`place-${number}`).focus();
    return true;
  }
}

class FlameChart extends ZoomChart {
  constructor(model, scroll) {
    super(
      `Flame graph of ${formatCount(model.count, "box", "boxes")} in a step of ${formatDuration(model.total)}`,
      100,
      model.total,
      model.total * 1e-6,
    );
    this.model = model;
    this.scroll = scroll;
    this.total = model.levels * FLAME_ROW + 2;
    this.height = Math.min(this.total, FLAME_MOST_HEIGHT);
    this.selected = -1;
    this.matches = null;
    scroll.addEventListener("scroll", () => this.redraw());
  }

  draw(pen, width, height, palette) {
    const { model, scale } = this,
      offset = this.scroll.scrollTop;
    for (let i = 0; i < model.count; i++) {
      const boxWidth = model.time[i] * scale,
        x = this.xOf(model.x[i]);
      const y = model.depth[i] * FLAME_ROW - offset;
      if (boxWidth < FLAME_FROM || x > width || x + boxWidth < 0 || y > height || y + FLAME_ROW < 0) continue;
      const category = model.categories[model.category[i]],
        left = Math.max(x, 0),
        right = Math.min(x + boxWidth, width);
      pen.globalAlpha = this.matches && !this.matches[model.nameId[i]] ? 0.2 : 1;
      pen.fillStyle = palette.fill(category);
      pen.fillRect(left, y, Math.max(right - left - 0.5, 0.5), FLAME_ROW - 1);
      pen.fillStyle = inkOn(palette.colour(palette.styleOf(category)[0]));
      const text = fitText(pen, model.nameOf(i), right - left - 8);
      if (text) pen.fillText(text, left + 4, y + FLAME_ROW / 2 - 0.5);
      pen.globalAlpha = 1;
      if (i === this.selected) {
        pen.strokeStyle = palette.colour("ink");
        pen.lineWidth = 2;
        pen.strokeRect(left + 1, y + 1, right - left - 2, FLAME_ROW - 3);
      }
    }
  }

  nodeAt(x, y) {
    const value = this.valueAt(x),
      depth = Math.floor((y + this.scroll.scrollTop) / FLAME_ROW);
    let nodes = this.model.roots,
      found = -1;
    for (let level = 0; level <= depth; level++) {
      found = nodes.find((i) => this.model.x[i] <= value && value < this.model.x[i] + this.model.time[i]) ?? -1;
      if (found < 0) return -1;
      nodes = this.model.children[found];
    }
    return found;
  }

  hover(x, y, event) {
    const node = this.nodeAt(x, y);
    this.canvas.style.cursor = this.model.cursorOn(node);
    if (node < 0) hideTip();
    else showTip(event.clientX, event.clientY, this.model.describe(node));
  }

  click(x, y) {
    const node = this.nodeAt(x, y);
    if (node >= 0) this.open(node);
  }

  open(node) {
    if (!this.model.leadTo(node)) this.zoomTo(node);
  }

  /** Make a node as wide as the chart; the same node again leads back to the one above it. */
  zoomTo(node) {
    const isShown =
      this.selected === node &&
      this.from === this.model.x[node] &&
      this.to === this.model.x[node] + this.model.time[node];
    const target = isShown && this.model.parent[node] >= 0 ? this.model.parent[node] : node;
    this.select(target);
    this.show(this.model.x[target], this.model.x[target] + this.model.time[target]);
  }

  select(node) {
    this.selected = node;
    this.redraw();
    if (node < 0) {
      hideTip();
      return;
    }
    const y = this.model.depth[node] * FLAME_ROW;
    if (y < this.scroll.scrollTop || y + FLAME_ROW > this.scroll.scrollTop + this.height)
      this.scroll.scrollTop = y - this.height / 2;
    const box = this.canvas.getBoundingClientRect(),
      x = Math.min(Math.max(this.xOf(this.model.x[node]), 0), this.width);
    showTip(box.left + x, box.top + y - this.scroll.scrollTop, this.model.describe(node));
  }

  onKey(key, shift) {
    const { model } = this,
      node = this.selected;
    if (shift || key === "+" || key === "-" || key === "=" || (node < 0 && key.startsWith("ArrowL")))
      return super.onKey(key);
    if (key === "Escape") {
      this.select(-1);
      this.show(0, this.span);
      return true;
    }
    if (node < 0) {
      if (key === "ArrowDown" || key === "ArrowRight") this.select(model.roots[0]);
      return key === "ArrowDown" || key === "ArrowRight" || super.onKey(key);
    }
    const siblings = model.parent[node] < 0 ? model.roots : model.children[model.parent[node]];
    const largest = model.children[node].reduce(
      (best, i) => (best < 0 || model.time[i] > model.time[best] ? i : best),
      -1,
    );
    const next = {
      ArrowUp: model.parent[node],
      ArrowDown: largest,
      ArrowLeft: siblings[siblings.indexOf(node) - 1],
      ArrowRight: siblings[siblings.indexOf(node) + 1],
    };
    if (key === "Enter" || key === " ") this.open(node);
    else if (key in next) {
      if ((next[key] ?? -1) >= 0) this.select(next[key]);
    } else return super.onKey(key);
    return true;
  }

  find(text) {
    const { model } = this;
    this.matches = text ? Uint8Array.from(model.names, (name) => name.toLowerCase().includes(text)) : null;
    this.found = this.matches ? [...model.parent.keys()].filter((i) => this.matches[model.nameId[i]]) : [];
    this.foundAt = -1;
    this.redraw();
    if (!this.matches) return "";
    const time = this.found.filter((i) => !this.hasMatchAbove(i)).reduce((sum, i) => sum + model.time[i], 0);
    return `${formatCount(this.found.length, "box", "boxes")}, ${formatDuration(time)}`;
  }

  hasMatchAbove(node) {
    for (let i = this.model.parent[node]; i >= 0; i = this.model.parent[i])
      if (this.matches[this.model.nameId[i]]) return true;
    return false;
  }

  findNext(isBack) {
    if (!this.found?.length) return;
    this.foundAt = (this.foundAt + (isBack ? -1 : 1) + this.found.length) % this.found.length;
    this.select(this.found[this.foundAt]);
  }
}

function makeFlames(data) {
  const model = new FlameModel(data);
  const scroll = element("div", "scroll-box");
  const chart = new FlameChart(model, scroll);
  const tools = element("div", "tools");
  tools.append(
    chart.zoomButtons(),
    ...searchBox(
      (text) => chart.find(text),
      (isBack) => chart.findNext(isBack),
    ),
  );
  const used = [...new Set(model.category)].map((code) => model.categories[code]);
  const help = element(
    "p",
    "quiet help",
    "Click a place to read about it, another box to zoom to it, again to go back; Escape shows all. With the keys: arrows and Enter.",
  );
  const alternative = tableAlternative(
    "What has the most time of its own",
    ["what", "below", "own", "with what is below it", "share"],
    () =>
      [...model.own.keys()]
        .sort((a, b) => model.own[b] - model.own[a])
        .slice(0, 30)
        .map((i) => [
          model.nameOf(i),
          model.parent[i] < 0 ? "" : model.nameOf(model.parent[i]),
          formatDuration(model.own[i]),
          formatDuration(model.time[i]),
          formatShare(model.time[i] / model.total),
        ]),
  );
  return [tools, inScrollBox(chart, scroll), makeLegend(used), help, alternative];
}
