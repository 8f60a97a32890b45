// The treemap: the tree of the flame graph as areas, each within the area of what it is below.

const TREEMAP_HEIGHT = 420,
  TREEMAP_HEAD = 18,
  TREEMAP_LEAST = 3;

/** Rectangles for `values` in a rectangle, near squares: Bruls, Huizing and van Wijk, Squarified Treemaps (2000). */
function squarify(values, x, y, width, height) {
  const total = values.reduce((sum, value) => sum + value, 0),
    boxes = [];
  if (!total) return boxes;
  const areas = values.map((value) => (value / total) * width * height);
  let at = 0;
  while (at < areas.length) {
    const side = Math.min(width, height);
    let count = 1,
      sum = areas[at],
      worst = worstRatio(areas[at], areas[at], sum, side);
    while (at + count < areas.length) {
      const next = sum + areas[at + count],
        ratio = worstRatio(areas[at], areas[at + count], next, side);
      if (ratio > worst) break;
      [sum, worst, count] = [next, ratio, count + 1];
    }
    const thickness = side ? sum / side : 0;
    let along = 0;
    for (const area of areas.slice(at, at + count)) {
      const length = thickness ? area / thickness : 0;
      boxes.push(width >= height ? [x, y + along, thickness, length] : [x + along, y, length, thickness]);
      along += length;
    }
    if (width >= height) [x, width] = [x + thickness, width - thickness];
    else [y, height] = [y + thickness, height - thickness];
    at += count;
  }
  return boxes;
}

/** The longest ratio of sides in a row of areas, of which these are the largest and the smallest. */
function worstRatio(largest, smallest, sum, side) {
  const square = side * side;
  return Math.max((square * largest) / (sum * sum), (sum * sum) / (square * smallest || 1e-9));
}

class TreemapChart extends CanvasChart {
  constructor(model, status) {
    super(`Treemap of ${formatCount(model.count, "area")}`, TREEMAP_HEIGHT);
    this.model = model;
    this.status = status;
    this.root = -1;
    this.selected = -1;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => this.open(this.nodeAt(...this.at(event))));
  }

  draw(pen, width, height, palette) {
    this.boxes = [];
    const top = this.root < 0 ? this.model.roots : [this.root];
    this.drawAll(pen, top, [0, 0, width, height], palette, 0);
    const chosen = this.boxes.find(([node]) => node === this.selected);
    if (chosen) {
      pen.strokeStyle = palette.colour("ink");
      pen.lineWidth = 3;
      pen.strokeRect(chosen[1] + 1.5, chosen[2] + 1.5, chosen[3] - 3, chosen[4] - 3);
    }
  }

  drawAll(pen, nodes, [x, y, width, height], palette, level) {
    const boxes = squarify(
      nodes.map((i) => this.model.time[i]),
      x,
      y,
      width,
      height,
    );
    nodes.forEach((node, i) => this.drawNode(pen, node, boxes[i], palette, level));
  }

  drawNode(pen, node, [x, y, width, height], palette, level) {
    if (width < TREEMAP_LEAST || height < TREEMAP_LEAST) return;
    const { model } = this,
      children = model.children[node],
      phase = model.nameOf(model.rootOf(node));
    this.boxes.push([node, x, y, width, height]);
    pen.fillStyle = children.length ? palette.colour("raised") : palette.fill(phase);
    pen.fillRect(x, y, width, height);
    pen.strokeStyle = palette.colour(children.length ? "line" : "paper");
    pen.lineWidth = level ? 1 : 2;
    pen.strokeRect(x, y, width, height);
    pen.fillStyle = children.length ? palette.colour("ink") : inkOn(palette.colour(palette.styleOf(phase)[0]));
    const text = height > 14 ? fitText(pen, model.nameOf(node), width - 8) : "";
    if (text) pen.fillText(text, x + 4, y + 10);
    if (!children.length) {
      if (text && height > 32) pen.fillText(fitText(pen, formatDuration(model.time[node]), width - 8), x + 4, y + 25);
      return;
    }
    const inner = [x + 2, y + TREEMAP_HEAD, width - 4, height - TREEMAP_HEAD - 2];
    if (inner[2] < 8 || inner[3] < 8) return;
    // What is its own stays free: the parts fill their share of the area.
    const shareOfParts = 1 - model.own[node] / model.time[node];
    if (inner[2] > inner[3]) inner[2] *= shareOfParts;
    else inner[3] *= shareOfParts;
    this.drawAll(pen, children, inner, palette, level + 1);
  }

  nodeAt(x, y) {
    const box = this.boxes.findLast(
      ([, left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height,
    );
    return box ? box[0] : -1;
  }

  hover(event) {
    const node = this.nodeAt(...this.at(event));
    this.canvas.style.cursor = this.model.cursorOn(node);
    if (node < 0) hideTip();
    else showTip(event.clientX, event.clientY, this.model.describe(node));
  }

  open(node) {
    if (node >= 0 && !this.model.leadTo(node)) this.zoomTo(node);
  }

  /** Fill the chart with a node; the one that fills it leads back to the one above it. */
  zoomTo(node) {
    const target = node === this.root ? this.model.parent[node] : node;
    this.root = target < 0 || this.model.children[target].length ? target : this.model.parent[target];
    this.selected = target;
    this.status.textContent = this.root < 0 ? "" : `in ${this.model.nameOf(this.root)}`;
    this.redraw();
  }

  onKey(key) {
    const { model, selected } = this;
    if (key === "Escape") {
      [this.root, this.selected] = [-1, -1];
      this.status.textContent = "";
      hideTip();
      this.redraw();
      return true;
    }
    if (key === "Enter" || key === " ") {
      this.open(selected);
      return true;
    }
    if (!key.startsWith("Arrow")) return false;
    const parent = selected < 0 ? -1 : model.parent[selected];
    const siblings = parent < 0 ? model.roots : model.children[parent];
    const at = siblings.indexOf(selected);
    const next =
      selected < 0
        ? this.root < 0
          ? model.roots[0]
          : this.root
        : {
            ArrowLeft: siblings[at - 1],
            ArrowRight: siblings[at + 1],
            ArrowUp: parent,
            ArrowDown: model.children[selected][0],
          }[key];
    if (next !== undefined && next >= 0) {
      this.selected = next;
      this.drawNow();
      const box = this.boxes.find(([node]) => node === next),
        outer = this.canvas.getBoundingClientRect();
      showTip(outer.left + (box?.[1] ?? 0), outer.top + (box?.[2] ?? 0) + 8, model.describe(next));
    }
    return true;
  }
}

function makeTreemap(data) {
  const status = element("span", "quiet");
  status.setAttribute("role", "status");
  const model = new FlameModel(data);
  const chart = new TreemapChart(model, status);
  const tools = element("div", "tools");
  const all = tools.appendChild(element("button", "", "All"));
  all.type = "button";
  all.addEventListener("click", () => chart.onKey("Escape"));
  tools.append(status);
  const help = element(
    "p",
    "quiet help",
    "Click a place to read about it, another area to fill the chart with it; Escape shows all. With the keys: arrows and Enter.",
  );
  const alternative = tableAlternative("The tree as a table", ["what", "time a step", "in itself", "share"], () =>
    [...model.parent.keys()].map((i) => [
      `${"\u2003".repeat(model.depth[i])}${model.nameOf(i)}`,
      formatDuration(model.time[i]),
      formatDuration(model.own[i]),
      formatShare(model.time[i] / model.total),
    ]),
  );
  return [tools, chart.canvas, makeLegend(model.roots.map((i) => model.nameOf(i))), help, alternative];
}
