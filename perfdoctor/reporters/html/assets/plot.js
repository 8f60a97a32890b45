// What the charts with axes share: uPlot has the axes, the scales and the zoom, in the colours of the page.

const PLOT_HEIGHT = 360;

/** A uPlot in its place, made anew for each theme; `makeOptions(palette)` gives what differs between charts. */
class Plot {
  constructor(label, data, makeOptions) {
    this.place = element("div", "plot");
    this.data = data;
    this.makeOptions = makeOptions;
    this.label = label;
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(this.place);
    DRAWINGS.push(() => this.resize());
    onTheme((palette) => {
      this.palette = palette;
      if (this.plot) this.make();
    });
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    if (this.plot) this.plot.setSize({ width, height: PLOT_HEIGHT });
    else this.make();
  }

  make() {
    this.plot?.destroy();
    const options = {
      width: this.width,
      height: PLOT_HEIGHT,
      legend: { show: false },
      ...this.makeOptions(this.palette),
    };
    this.plot = new uPlot(options, this.data, this.place);
    const over = this.plot.over;
    over.tabIndex = 0;
    over.setAttribute("role", "application");
    over.setAttribute("aria-label", this.label);
    over.addEventListener("mouseleave", hideTip);
    over.addEventListener("blur", hideTip);
    over.addEventListener("mousemove", (event) => {
      const box = over.getBoundingClientRect();
      this.point(this.nearest(event.clientX - box.left, event.clientY - box.top), false);
    });
    over.addEventListener("keydown", (event) => {
      if (this.onKey(event.key)) event.preventDefault();
    });
  }

  /** Say what a point is, beside it; `isKey` where it was reached by keys. */
  point(index, isKey) {
    this.chosen = index;
    if (index < 0) {
      hideTip();
      return;
    }
    const box = this.plot.over.getBoundingClientRect(),
      [x, y] = this.placeOf(index);
    if (isKey) this.plot.setCursor({ left: x, top: y });
    showTip(box.left + x, box.top + y, this.describe(index));
  }

  onKey(key) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[key];
    if (by) this.point(Math.min(Math.max((this.chosen ?? -1) + by, 0), this.count - 1), true);
    else if (key === "Escape") {
      this.plot.setData(this.data);
      this.point(-1, true);
    } else return false;
    return true;
  }
}

function axisStyle(palette, more) {
  return {
    stroke: palette.colour("quiet"),
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    grid: { stroke: palette.colour("line"), width: 1 },
    ticks: { stroke: palette.colour("line"), width: 1 },
    ...more,
  };
}
