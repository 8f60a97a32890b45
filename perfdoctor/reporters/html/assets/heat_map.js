// The heat map: a row for each rank, a column for each step, the darker the longer.

const HEAT_LEFT = 52, HEAT_BOTTOM = 22, HEAT_MOST_HEIGHT = 480;

class HeatMap extends CanvasChart {
  constructor(data) {
    const steps = data.step_ns.reduce((most, row) => Math.max(most, row.length), 1);
    super(`Heat map of ${formatCount(steps, "column")} on ${formatCount(data.ranks.length, "rank")}`, 100);
    this.data = data;
    this.steps = steps;
    this.cell = Math.min(Math.max(Math.floor(HEAT_MOST_HEIGHT / data.ranks.length), 1), 26);
    this.height = this.cell * data.ranks.length + HEAT_BOTTOM;
    const known = data.step_ns.flat().filter((ns) => ns !== null).sort((a, b) => a - b);
    this.low = known[0] ?? 0;
    // A single slow step would make all others look alike, and a difference of a percent is not a dark one.
    this.high = Math.max(known[Math.ceil((known.length - 1) * 0.98)] ?? 0, 1.1 * this.low, 1);
    this.selected = null;
    this.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = this.at(event), cell = this.cellAt(x, y);
      if (cell) showTip(event.clientX, event.clientY, this.describe(...cell));
      else hideTip();
    });
  }

  get across() {
    return (this.width - HEAT_LEFT) / this.steps;
  }

  draw(pen, width, height, palette) {
    const { data, cell, across } = this;
    data.step_ns.forEach((row, rank) => {
      row.forEach((ns, step) => {
        const x = HEAT_LEFT + step * across;
        if (ns === null) return;
        pen.fillStyle = this.colourOf(ns);
        pen.fillRect(x, rank * cell, Math.max(across - (across > 4 ? 1 : 0), 0.5), Math.max(cell - (cell > 4 ? 1 : 0), 0.5));
        if (across > 56 && cell > 15) {
          pen.fillStyle = inkOn(pen.fillStyle);
          pen.fillText(formatDuration(ns), x + 5, rank * cell + cell / 2);
        }
      });
    });
    pen.fillStyle = palette.colour("quiet");
    const every = Math.ceil(14 / cell);
    data.ranks.forEach((rank, i) => { if (i % every === 0) pen.fillText(`rank ${rank ?? "?"}`, 2, i * cell + Math.max(cell, 10) / 2, HEAT_LEFT - 6); });
    const labelled = Math.ceil(48 / across);
    for (let step = 0; step < this.steps; step += labelled) {
      pen.fillText(`${step * data.steps_per_cell + 1}`, HEAT_LEFT + (step + 0.5) * across - 4, height - HEAT_BOTTOM / 2);
    }
    pen.fillText(data.cell_name, 2, height - HEAT_BOTTOM / 2);
    if (this.selected) {
      const [rank, step] = this.selected;
      pen.strokeStyle = palette.colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(HEAT_LEFT + step * across, rank * cell, across, cell);
    }
  }

  /** What a column is: a step, several in a row, or all of the time where there are no steps. */
  cellName(step) {
    const many = this.data.steps_per_cell;
    if (many > 1) return `steps ${step * many + 1} to ${(step + 1) * many}`;
    return this.steps > 1 || this.data.cell_name === "step" ? `${this.data.cell_name} ${step + 1}` : this.data.cell_name;
  }

  colourOf(ns) {
    return sequentialColour(1 - (ns - this.low) / (this.high - this.low));
  }

  cellAt(x, y) {
    const rank = Math.floor(y / this.cell), step = Math.floor((x - HEAT_LEFT) / this.across);
    return rank >= 0 && rank < this.data.ranks.length && step >= 0 && step < this.steps ? [rank, step] : null;
  }

  describe(rank, step) {
    const late = this.data.late_ns?.[rank];
    return [
      `rank ${this.data.ranks[rank] ?? "?"}, ${this.cellName(step)}`,
      formatDuration(this.data.step_ns[rank][step] ?? null),
      late ? `late by ${formatDuration(late)} a step` : "",
    ];
  }

  onKey(key) {
    if (key === "Escape") {
      this.selected = null;
      hideTip();
      this.redraw();
      return true;
    }
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
    if (!by) return false;
    const [rank, step] = this.selected ?? [0, 0];
    const move = this.selected ? by : [0, 0];
    this.selected = [
      Math.min(Math.max(rank + move[0], 0), this.data.ranks.length - 1), Math.min(Math.max(step + move[1], 0), this.steps - 1),
    ];
    this.redraw();
    const box = this.canvas.getBoundingClientRect();
    showTip(box.left + HEAT_LEFT + this.selected[1] * this.across, box.top + this.selected[0] * this.cell + 8, this.describe(...this.selected));
    return true;
  }
}

function makeHeatMap(data) {
  const chart = new HeatMap(data);
  const scale = element("p", "quiet heat-scale");
  const bar = element("canvas");
  bar.width = 120;
  bar.height = 12;
  const pen = bar.getContext("2d");
  for (let x = 0; x < 120; x++) {
    pen.fillStyle = sequentialColour(1 - x / 119);
    pen.fillRect(x, 0, 1, 12);
  }
  scale.append(`${formatDuration(chart.low)} `, bar, ` ${formatDuration(chart.high)} and more`);
  const head = ["rank", ...Array.from({ length: chart.steps }, (_, step) => chart.cellName(step))];
  const alternative = tableAlternative("The steps as a table", head, () =>
    data.ranks.map((rank, i) => [`${rank ?? "?"}`, ...Array.from({ length: chart.steps }, (_, step) => formatDuration(data.step_ns[i][step] ?? null))]));
  return [chart.canvas, scale, alternative];
}
