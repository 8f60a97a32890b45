// What all charts on a canvas share: sharp pixels, one drawing a frame, the tip, and zooming and panning along x.

/** What draws each chart anew at once, as printing needs it. */
const DRAWINGS = [];

/** A canvas as wide as its place; `draw(pen, width, height, palette)` is called once a frame at most. */
class CanvasChart {
  constructor(label, height) {
    this.canvas = element("canvas", "drawing");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", label);
    this.pen = this.canvas.getContext("2d");
    this.height = height;
    this.width = 0;
    this.frame = 0;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    DRAWINGS.push(() => this.drawNow());
    onTheme((palette) => {
      this.palette = palette;
      this.redraw();
    });
    this.canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.metaKey || event.ctrlKey) return;
      if (this.onKey(event.key, event.shiftKey)) event.preventDefault();
    });
    this.canvas.addEventListener("pointerleave", () => hideTip());
    this.canvas.addEventListener("blur", () => hideTip());
  }

  onKey() {
    return false;
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const width = this.canvas.clientWidth, scale = devicePixelRatio || 1;
    if (!width) return;
    this.width = width;
    this.canvas.style.height = `${this.height}px`;
    const [across, down] = [Math.round(width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
    }
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.clearRect(0, 0, width, this.height);
    this.pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    this.pen.textBaseline = "middle";
    this.draw(this.pen, width, this.height, this.palette);
  }

  /** Where an event is on the canvas, in its own pixels. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

const CLICK_DISTANCE = 4;

/** A chart along x from 0 to `span`, of which [from, to] is in sight. Subclasses have `hover(x, y)` and `click(x, y)`. */
class ZoomChart extends CanvasChart {
  constructor(label, height, span, shortest) {
    super(label, height);
    this.span = span;
    this.shortest = shortest;
    this.from = 0;
    this.to = span;
    this.pointers = new Map();
    this.listenToPointers();
    this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  get scale() {
    return this.width / (this.to - this.from);
  }

  xOf(value) {
    return (value - this.from) * this.scale;
  }

  valueAt(x) {
    return this.from + x / this.scale;
  }

  /** Show [from, to], moved into the chart and no shorter than what can be told apart. */
  show(from, to) {
    const length = Math.min(Math.max(to - from, this.shortest), this.span);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(length === to - from ? from : middle - length / 2, 0), this.span - length);
    this.to = this.from + length;
    this.redraw();
  }

  zoom(factor, x = this.width / 2) {
    const value = this.valueAt(x), length = (this.to - this.from) / factor;
    const from = value - length * (x / this.width);
    this.show(from, from + length);
  }

  pan(pixels) {
    const by = pixels / this.scale;
    this.show(this.from + by, this.to + by);
  }

  onWheel(event) {
    const isZoom = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
    const isAcross = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (isAcross && isZoom) this.pan(event.deltaX || event.deltaY);
    else if (isZoom) this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), this.at(event)[0]);
    else return; // the page scrolls until the chart is chosen
    event.preventDefault();
    hideTip();
  }

  listenToPointers() {
    const canvas = this.canvas;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event);
      this.moved = this.pointers.size > 1 ? Infinity : 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = this.pointers.get(event.pointerId);
      if (!before) {
        this.hover(...this.at(event), event);
        return;
      }
      this.drag(before, event);
      this.pointers.set(event.pointerId, event);
    });
    const release = (event) => {
      const wasDown = this.pointers.delete(event.pointerId);
      if (wasDown && event.type === "pointerup" && this.moved < CLICK_DISTANCE) this.click(...this.at(event), event);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("dblclick", (event) => this.zoom(4, this.at(event)[0]));
  }

  drag(before, event) {
    if (this.pointers.size === 1) {
      const by = event.clientX - before.clientX;
      this.moved += Math.abs(by) + Math.abs(event.clientY - before.clientY);
      if (this.moved >= CLICK_DISTANCE) {
        this.pan(-by);
        hideTip();
      }
      return;
    }
    const other = [...this.pointers.values()].find((each) => each.pointerId !== event.pointerId);
    const [x, y] = this.at(event), [oldX] = this.at(before), [otherX] = this.at(other);
    const [now, old] = [Math.abs(x - otherX), Math.abs(oldX - otherX)];
    if (now > 8 && old > 8) this.zoom(now / old, (x + otherX) / 2);
  }

  onKey(key) {
    const step = this.width / 8;
    const actions = {
      ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
      Home: () => this.show(0, this.span), 0: () => this.show(0, this.span),
    };
    if (!actions[key]) return false;
    actions[key]();
    return true;
  }

  /** Buttons for those who have neither wheel nor keys. */
  zoomButtons() {
    const group = element("span", "zoom");
    for (const [text, label, action] of [
      ["+", "Zoom in", () => this.zoom(2)], ["\u2212", "Zoom out", () => this.zoom(0.5)], ["All", "Show all", () => this.show(0, this.span)],
    ]) {
      const button = group.appendChild(element("button", "", text));
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.addEventListener("click", action);
    }
    return group;
  }
}

/** The chart in a box that scrolls where it is higher than its canvas; the canvas stays and draws what is in sight. */
function inScrollBox(chart, scroll) {
  scroll.append(chart.canvas);
  scroll.style.height = `${chart.height + 2}px`; // and its border
  scroll.appendChild(element("div")).style.height = `${chart.total - chart.height}px`;
  return scroll;
}

/** Show lines of text beside a point of the window; the first line is a name. */
function showTip(x, y, lines) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => element(i ? "div" : "b", "", line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

/** The text that a reader sees on a fill, by its lightness. */
function inkOn(colour) {
  const [r, g, b] = colour.startsWith("#") ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : colour.match(/\d+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 100 ? "#000" : "#fff";
}

/** `text`, or as much of it as fits into `width`; "" where nothing worth reading does. */
function fitText(pen, text, width) {
  if (width < 24) return "";
  const most = Math.ceil(width / 4);
  const short = text.length > most ? text.slice(0, most) : text;
  const full = pen.measureText(short).width;
  if (full <= width && short === text) return text;
  const count = Math.floor((short.length * (width - 8)) / full);
  return count < 3 ? "" : `${short.slice(0, count)}\u2026`;
}

/** Round steps of an axis: about one for each `spacing` pixels. */
function axisSteps(from, to, width, spacing = 110) {
  const rough = ((to - from) * spacing) / width;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= rough);
  const steps = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) steps.push(at);
  return [steps, step];
}

/** A search box; `find(text)` is called as one types and gives the sentence to show, `next()` on Enter. */
function searchBox(find, next) {
  const label = element("label", "", "Find ");
  const input = label.appendChild(document.createElement("input"));
  input.type = "search";
  input.placeholder = "part of a name";
  const status = element("span", "quiet");
  status.setAttribute("role", "status");
  input.addEventListener("input", () => { status.textContent = find(input.value.trim().toLowerCase()); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      next(event.shiftKey);
    } else if (event.key === "Escape") {
      input.value = "";
      status.textContent = find("");
    }
  });
  return [label, status];
}

/** A folded table of plain texts, for those who do not see the chart. */
function tableAlternative(title, head, makeRows) {
  const details = element("details", "alternative");
  details.append(element("summary", "", title));
  details.addEventListener("toggle", () => {
    if (details.querySelector("table")) return;
    const scroll = details.appendChild(element("div", "scroll"));
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", title);
    const table = scroll.appendChild(element("table"));
    const headRow = table.createTHead().insertRow();
    for (const text of head) {
      const cell = headRow.appendChild(element("th", "", text));
      cell.scope = "col";
    }
    const body = table.createTBody();
    for (const row of makeRows()) {
      const line = body.insertRow();
      for (const text of row) line.insertCell().textContent = text;
    }
  });
  return details;
}
