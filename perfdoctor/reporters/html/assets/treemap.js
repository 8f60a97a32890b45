// The treemap: each module an area as large as its GPU time, within the area of the module that holds it.

const TREEMAP_HEIGHT = 420,
  TREEMAP_HEAD = 18,
  TREEMAP_LEAST = 3;
// Of the kinds of modules with the most time of their own; all others are grey.
const KIND_COLOURS = ["blue", "orange", "green", "pink", "sky", "yellow", "red"];

/** The modules as a tree; what a module takes beside its parts is an area of its own. */
class ModuleTree {
  constructor(modules) {
    this.modules = modules;
    this.children = modules.map(() => []);
    this.roots = [];
    modules.forEach((module, i) => (module.parent < 0 ? this.roots : this.children[module.parent]).push(i));
    this.total = this.roots.reduce((sum, i) => sum + modules[i].step_ns, 0);
    for (const list of [this.roots, ...this.children]) list.sort((a, b) => modules[b].step_ns - modules[a].step_ns);
    const ownNs = new Map();
    for (const { name, own_ns } of modules) ownNs.set(kindOf(name), (ownNs.get(kindOf(name)) ?? 0) + own_ns);
    this.kinds = [...ownNs.keys()].sort((a, b) => ownNs.get(b) - ownNs.get(a)).slice(0, KIND_COLOURS.length);
  }

  /** The name of the colour of a module: that of its kind, and a ground for what holds others. */
  colourOf(module) {
    if (this.children[module].some((i) => this.modules[i].step_ns > 0)) return "raised";
    return KIND_COLOURS[this.kinds.indexOf(kindOf(this.modules[module].name))] ?? "grey";
  }

  depth(module) {
    return module < 0 ? 0 : 1 + this.depth(this.modules[module].parent);
  }
}

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
  constructor(tree, status) {
    super(`Treemap of ${formatCount(tree.modules.length, "module")}`, TREEMAP_HEIGHT);
    this.tree = tree;
    this.status = status;
    this.root = -1;
    this.selected = -1;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => this.zoomTo(this.moduleAt(...this.at(event))));
  }

  draw(pen, width, height, palette) {
    this.boxes = [];
    const top = this.root < 0 ? this.tree.roots : [this.root];
    this.drawAll(pen, top, [0, 0, width, height], palette, 0);
    const chosen = this.boxes.find(([module]) => module === this.selected);
    if (chosen) {
      pen.strokeStyle = palette.colour("ink");
      pen.lineWidth = 3;
      pen.strokeRect(chosen[1] + 1.5, chosen[2] + 1.5, chosen[3] - 3, chosen[4] - 3);
    }
  }

  drawAll(pen, modules, [x, y, width, height], palette, level) {
    const shown = modules.filter((i) => this.tree.modules[i].step_ns > 0);
    const boxes = squarify(
      shown.map((i) => this.tree.modules[i].step_ns),
      x,
      y,
      width,
      height,
    );
    shown.forEach((module, i) => this.drawModule(pen, module, boxes[i], palette, level));
  }

  drawModule(pen, module, [x, y, width, height], palette, level) {
    if (width < TREEMAP_LEAST || height < TREEMAP_LEAST) return;
    const { tree } = this,
      each = tree.modules[module];
    this.boxes.push([module, x, y, width, height]);
    const colour = tree.colourOf(module);
    pen.fillStyle = palette.colour(colour);
    pen.fillRect(x, y, width, height);
    const ink = colour === "raised" ? palette.colour("ink") : inkOn(palette.colour(colour));
    pen.strokeStyle = palette.colour(colour === "raised" ? "line" : "paper");
    pen.lineWidth = level ? 1 : 2;
    pen.strokeRect(x, y, width, height);
    pen.fillStyle = ink;
    const text = height > 14 ? fitText(pen, shortName(each.name), width - 8) : "";
    if (text) pen.fillText(text, x + 4, y + 10);
    const children = tree.children[module];
    const parts = children.reduce((sum, i) => sum + tree.modules[i].step_ns, 0);
    if (!parts) {
      if (text && height > 32) pen.fillText(fitText(pen, formatDuration(each.step_ns), width - 8), x + 4, y + 25);
      return;
    }
    const inner = [x + 2, y + TREEMAP_HEAD, width - 4, height - TREEMAP_HEAD - 2];
    if (inner[2] < 8 || inner[3] < 8) return;
    // What the module takes itself stays free: the parts fill their share of the area.
    const share_of_parts = Math.min(parts / each.step_ns, 1);
    if (inner[2] > inner[3]) inner[2] *= share_of_parts;
    else inner[3] *= share_of_parts;
    this.drawAll(pen, children, inner, palette, level + 1);
  }

  moduleAt(x, y) {
    const box = this.boxes.findLast(
      ([, left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height,
    );
    return box ? box[0] : -1;
  }

  describe(module) {
    const each = this.tree.modules[module];
    const halves = [
      ["forward", each.forward_ns],
      ["backward", each.backward_ns],
      ["idle caused", each.idle_ns],
    ];
    return [
      each.name,
      `${formatDuration(each.step_ns)} a step (${formatShare(each.step_ns / this.tree.total)}), ${formatDuration(each.own_ns)} in itself`,
      halves
        .filter(([, ns]) => ns)
        .map(([name, ns]) => `${name} ${formatDuration(ns)}`)
        .join(", "),
    ];
  }

  hover(event) {
    const module = this.moduleAt(...this.at(event));
    this.canvas.style.cursor = module >= 0 ? "zoom-in" : "default";
    if (module < 0) hideTip();
    else showTip(event.clientX, event.clientY, this.describe(module));
  }

  /** Fill the chart with a module; the one that fills it leads back to the one that holds it. */
  zoomTo(module) {
    if (module < 0) return;
    const target = module === this.root ? this.tree.modules[module].parent : module;
    this.root = this.tree.children[target]?.length || target < 0 ? target : this.tree.modules[target].parent;
    this.selected = target;
    this.status.textContent = this.root < 0 ? "" : `in ${this.tree.modules[this.root].name}`;
    this.redraw();
  }

  onKey(key) {
    const { tree, selected } = this;
    if (key === "Escape") {
      [this.root, this.selected] = [-1, -1];
      this.status.textContent = "";
      hideTip();
      this.redraw();
      return true;
    }
    if (key === "Enter" || key === " ") {
      this.zoomTo(selected);
      return true;
    }
    if (!key.startsWith("Arrow")) return false;
    const parent = selected < 0 ? -1 : tree.modules[selected].parent;
    const siblings = parent < 0 ? tree.roots : tree.children[parent];
    const at = siblings.indexOf(selected);
    const next =
      selected < 0
        ? this.root < 0
          ? tree.roots[0]
          : this.root
        : {
            ArrowLeft: siblings[at - 1],
            ArrowRight: siblings[at + 1],
            ArrowUp: parent,
            ArrowDown: tree.children[selected][0],
          }[key];
    if (next !== undefined && next >= 0) {
      this.selected = next;
      this.drawNow();
      const box = this.boxes.find(([module]) => module === next),
        outer = this.canvas.getBoundingClientRect();
      showTip(outer.left + (box?.[1] ?? 0), outer.top + (box?.[2] ?? 0) + 8, this.describe(next));
    }
    return true;
  }
}

/** What kind of module it is: its class, or its name among those of its parent, without a number. */
function kindOf(name) {
  return (
    name
      .split(".")
      .findLast((part) => !/^\d+$/.test(part))
      ?.replace(/_\d+$/, "") ?? name
  );
}

/** The last part of a module's path, which names it within its parent. */
function shortName(name) {
  return name.slice(name.lastIndexOf(".") + 1) || name;
}

function makeTreemap(data) {
  const status = element("span", "quiet");
  status.setAttribute("role", "status");
  const tree = new ModuleTree(data);
  const chart = new TreemapChart(tree, status);
  const tools = element("div", "tools");
  const all = tools.appendChild(element("button", "", "All"));
  all.type = "button";
  all.addEventListener("click", () => chart.onKey("Escape"));
  tools.append(status);
  const help = element(
    "p",
    "quiet help",
    "Click a module to fill the chart with it; Escape shows all. With the keys: arrows and Enter.",
  );
  const alternative = tableAlternative(
    "The modules as a table",
    ["module", "GPU time a step", "in itself", "share"],
    () =>
      data.map((module) => [
        `${"\u2003".repeat(tree.depth(module.parent))}${module.name}`,
        formatDuration(module.step_ns),
        formatDuration(module.own_ns),
        formatShare(module.step_ns / tree.total),
      ]),
  );
  const shown = tree.kinds.filter((kind) =>
    data.some((_, i) => kindOf(data[i].name) === kind && tree.colourOf(i) !== "raised"),
  );
  const legend = legendOf(
    shown.map((kind) => [kind, (palette) => palette.colour(KIND_COLOURS[tree.kinds.indexOf(kind)])]),
  );
  return [tools, chart.canvas, legend, help, alternative];
}
