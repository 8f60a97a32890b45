// The timeline of a step on a canvas: only what is in sight is drawn, and of what is narrower than a pixel one item.

const LANE = 16, TRACK_HEAD = 20, AXIS = 24, MOST_HEIGHT = 580;
// Above the tracks the findings have a row each; of more than so many the last share one.
const FINDING_LANE = 14, MOST_FINDING_LANES = 8;

class TimelineChart extends ZoomChart {
  constructor(model, scroll) {
    const label = `Timeline of ${formatCount(model.count, "item")} on ${formatCount(model.tracks.length, "track")}`;
    super(label, 100, model.span, Math.min(model.span, Math.max(20, model.span * 1e-7)));
    this.model = model;
    this.scroll = scroll;
    this.matches = null;
    this.selected = null;
    this.finding = null;
    this.layOut();
    scroll.addEventListener("scroll", () => this.redraw());
  }

  /** The top of every track and lane below the axis. */
  layOut() {
    const lanes = Math.min(this.model.findings.length, MOST_FINDING_LANES);
    let top = AXIS + (lanes ? FINDING_LANE * lanes + 5 : 0);
    this.fixed = top;
    for (const track of this.model.tracks) {
      track.top = top;
      top += TRACK_HEAD + LANE * track.lanes.length + 4;
    }
    this.total = top;
    this.height = Math.min(top, MOST_HEIGHT);
  }

  get offset() {
    return this.scroll.scrollTop;
  }

  draw(pen, width, height, palette) {
    for (const track of this.model.tracks) {
      const top = track.top - this.offset;
      if (top > height || top + TRACK_HEAD + LANE * track.lanes.length < this.fixed) continue;
      pen.fillStyle = palette.colour("line");
      pen.fillRect(0, top, width, 1);
      track.lanes.forEach((lane, depth) => {
        const y = top + TRACK_HEAD + LANE * depth;
        if (y < height && y + LANE > this.fixed) this.drawLane(pen, lane, y, palette);
      });
      pen.fillStyle = palette.colour("quiet");
      pen.fillText(track.name, 4, top + TRACK_HEAD / 2 + 1);
    }
    this.drawFinding(pen, height, palette);
    this.drawLinks(pen, palette);
    this.drawSelection(pen, palette);
    this.drawHead(pen, width, palette);
  }

  drawLane(pen, lane, y, palette) {
    const { track, rows } = lane, { from, to, scale, matches } = this;
    const { start, dur, category, nameId } = track;
    let i = lane.firstEndingAfter(from), last = -1;
    while (i < lane.length) {
      const row = rows[i];
      if (start[row] > to) break;
      const x = (start[row] - from) * scale, width = dur[row] * scale;
      if (category[row] !== last) {
        last = category[row];
        pen.fillStyle = palette.fill(this.model.categories[last]);
      }
      const isDim = matches !== null && !matches[nameId[row]];
      if (isDim) pen.globalAlpha = 0.15;
      if (width < 1) {
        const pixel = Math.floor(x);
        pen.fillRect(pixel, y, 1, LANE - 2);
        i = lane.firstEndingAfter(from + (pixel + 1) / scale, i + 1);
      } else {
        const left = Math.max(x, -2), right = Math.min(x + width, this.width + 2);
        pen.fillRect(left, y, Math.max(right - left - (width > 3 ? 0.5 : 0), 0.5), LANE - 2);
        if (right - left > 30) {
          this.drawName(pen, track, row, left, right - left, y, palette);
          last = -1;
        }
        i++;
      }
      if (isDim) pen.globalAlpha = 1;
    }
  }

  drawName(pen, track, row, left, width, y, palette) {
    const text = fitText(pen, this.model.labelOf(track, row), width - 8);
    if (!text) return;
    const [colour, pattern] = palette.styleOf(this.model.categoryOf(track, row));
    const start = Math.max(left, 0) + 4;
    if (pattern) {
      pen.fillStyle = palette.colour(colour);
      pen.fillRect(start - 2, y + 1, pen.measureText(text).width + 4, LANE - 4);
    }
    pen.fillStyle = inkOn(palette.colour(colour));
    pen.fillText(text, start, y + LANE / 2 - 0.5);
  }

  drawHead(pen, width, palette) {
    pen.fillStyle = palette.colour("paper");
    pen.fillRect(0, 0, width, this.fixed);
    const [steps] = axisSteps(this.from, this.to, width);
    for (const at of steps) {
      const x = this.xOf(at);
      pen.fillStyle = palette.colour("line");
      pen.fillRect(x, 0, 1, this.fixed);
      pen.fillStyle = palette.colour("quiet");
      pen.fillText(formatDuration(at * this.model.unit), x + 4, AXIS / 2);
    }
    this.model.findings.forEach((finding, i) => this.drawFindingMarks(pen, finding, this.findingTop(i), palette));
    pen.fillStyle = palette.colour("line");
    pen.fillRect(0, this.fixed - 1, width, 1);
  }

  findingTop(i) {
    return AXIS + 2 + FINDING_LANE * Math.min(i, MOST_FINDING_LANES - 1);
  }

  /** The time that a finding claims, behind its number. */
  drawFindingMarks(pen, finding, y, palette) {
    const isChosen = this.finding === finding, number = `${findingNumber(finding.finding)}`;
    pen.fillStyle = isChosen ? palette.colour("accent") : palette.colour("grey");
    finding.start.forEach((start, i) => {
      const x = this.xOf(start), width = Math.max(finding.dur[i] * this.scale, 1);
      if (x <= this.width && x + width >= 0) pen.fillRect(x, y, width, FINDING_LANE - 3);
    });
    if (!number) return;
    pen.fillStyle = palette.colour("paper");
    pen.fillRect(0, y - 1, pen.measureText(number).width + 8, FINDING_LANE - 1);
    pen.fillStyle = palette.colour(isChosen ? "accent" : "ink");
    pen.fillText(number, 4, y + FINDING_LANE / 2 - 1);
  }

  /** The time that the chosen finding is about, through all tracks. */
  drawFinding(pen, height, palette) {
    if (!this.finding) return;
    pen.fillStyle = palette.colour("accent");
    pen.globalAlpha = 0.16;
    this.finding.start.forEach((start, i) => {
      pen.fillRect(this.xOf(start), this.fixed, Math.max(this.finding.dur[i] * this.scale, 1), height);
    });
    pen.globalAlpha = 1;
  }

  boxOf(track, row) {
    const y = track.top - this.offset + TRACK_HEAD + LANE * track.depth[row];
    return [this.xOf(track.start[row]), y, Math.max(track.dur[row] * this.scale, 2)];
  }

  drawSelection(pen, palette) {
    if (!this.selected) return;
    const [x, y, width] = this.boxOf(...this.selected);
    pen.strokeStyle = palette.colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, width + 2, LANE);
  }

  drawLinks(pen, palette) {
    if (!this.selected) return;
    const [x, y] = this.boxOf(...this.selected);
    pen.strokeStyle = palette.colour("ink");
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (const [track, row] of this.model.linkedTo(...this.selected).slice(0, 200)) {
      const [otherX, otherY] = this.boxOf(track, row);
      pen.moveTo(x, y + LANE / 2);
      pen.bezierCurveTo(x + 30, y + LANE / 2, otherX - 30, otherY + LANE / 2, otherX, otherY + LANE / 2);
    }
    pen.stroke();
  }

  /** The item at a point of the canvas; null where there is none. */
  itemAt(x, y) {
    if (y < this.fixed) return null;
    const down = y + this.offset;
    const track = this.model.tracks.findLast((each) => each.top <= down);
    const lane = track?.lanes[Math.floor((down - track.top - TRACK_HEAD) / LANE)];
    const row = lane ? lane.itemAt(this.valueAt(x), 3 / this.scale) : -1;
    return row < 0 ? null : [track, row];
  }

  findingAt(x, y) {
    const lane = Math.floor((y - AXIS - 2) / FINDING_LANE), time = this.valueAt(x), reach = 3 / this.scale;
    return this.model.findings.find((finding, i) => Math.min(i, MOST_FINDING_LANES - 1) === lane
      && finding.start.some((start, each) => start - reach <= time && time <= start + finding.dur[each] + reach)) ?? null;
  }

  hover(x, y, event) {
    const finding = this.findingAt(x, y), item = finding ? null : this.itemAt(x, y);
    this.canvas.style.cursor = finding || item ? "pointer" : "grab";
    if (finding) showTip(event.clientX, event.clientY, findingLines(finding));
    else if (item) showTip(event.clientX, event.clientY, this.describe(...item));
    else hideTip();
  }

  click(x, y) {
    const finding = this.findingAt(x, y);
    if (finding) {
      this.finding = this.finding === finding ? null : finding;
      this.redraw();
    } else this.select(this.itemAt(x, y));
  }

  describe(track, row) {
    const { model } = this;
    const merged = track.merged ? track.merged[row] : 1, linked = model.linkedTo(track, row);
    return [
      model.nameOf(track, row),
      merged > 1 ? `${formatCount(merged, "item")} within ${formatDuration(track.dur[row] * model.unit)}, the longest is named`
        : `${formatDuration(track.dur[row] * model.unit)}, at ${formatDuration(track.start[row] * model.unit)}`,
      `${categoryLabel(model.categoryOf(track, row))}, ${track.name}`,
      linked.length === 1 ? `${track.kind === "stream" ? "launched by" : "launches"} ${model.nameOf(...linked[0])}`
        : linked.length ? `launches ${formatCount(linked.length, "item")}` : "",
    ];
  }

  /** Choose an item, bring it into sight, and say what it is. */
  select(item, { reveal = false } = {}) {
    this.selected = item;
    this.redraw();
    if (!item) {
      hideTip();
      return;
    }
    const [track, row] = item;
    if (reveal) this.reveal(track, row);
    const box = this.canvas.getBoundingClientRect(), [x, y] = this.boxOf(track, row);
    showTip(box.left + Math.min(Math.max(x, 0), this.width), box.top + Math.min(Math.max(y, 0), this.height), this.describe(track, row));
  }

  reveal(track, row) {
    const start = track.start[row], end = start + track.dur[row];
    if (end < this.from || start > this.to || (end - start) * this.scale < 1) {
      const room = Math.max((end - start) * 8, (this.to - this.from) / 4);
      this.show((start + end - room) / 2, (start + end + room) / 2);
    }
    const y = track.top + TRACK_HEAD + LANE * track.depth[row];
    if (y - this.offset < this.fixed || y + LANE > this.offset + this.height) {
      this.scroll.scrollTop = y - this.height / 2;
    }
  }

  /** Choose a finding and show all of its time. */
  showFinding(finding) {
    this.finding = finding;
    const first = finding.start[0], end = finding.start.at(-1) + finding.dur.at(-1);
    const margin = Math.max((end - first) * 0.1, this.shortest);
    this.show(first - margin, end + margin);
  }

  onKey(key, shift) {
    if (key === "Escape") {
      this.finding = null;
      this.select(null);
      return true;
    }
    if (key === "Enter" && this.selected) {
      const [track, row] = this.selected, room = track.dur[row] * 0.2;
      this.show(track.start[row] - room, track.start[row] + track.dur[row] + room);
      return true;
    }
    const isAlong = key === "ArrowLeft" || key === "ArrowRight";
    if (shift && isAlong) return this.selectNeighbour(key === "ArrowRight" ? 1 : -1);
    if (key === "ArrowUp" || key === "ArrowDown") {
      if (shift) return this.selectLane(key === "ArrowDown" ? 1 : -1);
      this.scroll.scrollTop += key === "ArrowDown" ? 3 * LANE : -3 * LANE;
      return true;
    }
    return super.onKey(key);
  }

  /** Choose the next item of the same lane, or the first in sight. */
  selectNeighbour(by) {
    if (!this.selected) return this.selectLane(0);
    const [track, row] = this.selected, lane = track.lanes[track.depth[row]];
    const i = lane.rows.indexOf(row) + by;
    if (i >= 0 && i < lane.length) this.select([track, lane.rows[i]], { reveal: true });
    return true;
  }

  /** Choose an item of the next lane that has one near the middle of what is in sight. */
  selectLane(by) {
    const lanes = this.model.tracks.flatMap((track) => track.lanes).filter((lane) => lane.length);
    const [track, row] = this.selected ?? [];
    const now = track ? lanes.indexOf(track.lanes[track.depth[row]]) : 0;
    const lane = lanes[Math.min(Math.max(now + by, 0), lanes.length - 1)];
    const time = track ? track.start[row] + track.dur[row] / 2 : (this.from + this.to) / 2;
    const i = Math.min(lane.firstEndingAfter(time), lane.length - 1);
    this.select([lane.track, lane.rows[i]], { reveal: true });
    return true;
  }

  find(text) {
    this.matches = this.model.namesWith(text);
    this.found = this.matches ? this.model.itemsNamed(this.matches) : [];
    this.foundAt = -1;
    this.redraw();
    return this.matches ? `${formatCount(this.found.length, "item")}${this.found.length ? ", Enter for the next" : ""}` : "";
  }

  findNext(isBack) {
    if (!this.found?.length) return;
    this.foundAt = (this.foundAt + (isBack ? -1 : 1) + this.found.length) % this.found.length;
    this.select(this.found[this.foundAt], { reveal: true });
  }
}

/** The number by which the page calls a finding of the report; "" for one that it shows in a line. */
function findingNumber(position) {
  const button = document.querySelector(`.show-in-timeline[data-finding="${position}"]`);
  return button ? button.closest(".finding").id.replace("finding-", "") : "";
}

function findingLines(finding) {
  const number = findingNumber(finding.finding);
  const title = number ? document.getElementById(`title-${number}`).textContent : "a finding that is shown in a line";
  return [title, formatCount(finding.start.length, "time")];
}

function makeTimeline(data) {
  const model = new TimelineModel(data);
  const scroll = element("div", "scroll-box");
  const chart = new TimelineChart(model, scroll);
  const tools = element("div", "tools");
  tools.append(chart.zoomButtons(), ...searchBox((text) => chart.find(text), (isBack) => chart.findNext(isBack)));
  const used = [...new Set(model.tracks.flatMap((track) => [...new Set(track.category)]))].map((code) => model.categories[code]);
  const help = element("p", "quiet help",
    "Click the timeline, then turn the wheel to zoom (or pinch, or + and \u2212) and drag to pan (or \u2190 \u2192). "
    + "Shift and an arrow walks from item to item, Enter zooms to it, Home shows all, Escape lets go.");
  const joined = model.leftOut ? element("p", "quiet",
    `${formatCount(model.leftOut, "short item")} are joined with their neighbours of the same row.`) : "";
  timelineChart = chart;
  return [tools, inScrollBox(chart, scroll), makeLegend(used), joined, help];
}

let timelineChart = null;

/** Buttons of the findings whose time is in the timeline lead there. */
function startFindingButtons() {
  const findings = pageData().timeline?.findings ?? [];
  const withTime = new Set(findings.filter((each) => each.start.length).map((each) => each.finding));
  for (const button of document.querySelectorAll(".show-in-timeline")) {
    const position = Number(button.dataset.finding);
    if (!withTime.has(position)) continue;
    button.hidden = false;
    button.addEventListener("click", () => {
      const place = document.querySelector('[data-chart="timeline"]');
      startChart(place, CHARTS.timeline);
      timelineChart.drawNow();
      timelineChart.showFinding(timelineChart.model.findings.find((each) => each.finding === position));
      document.getElementById("timeline").scrollIntoView();
      timelineChart.canvas.focus({ preventScroll: true });
    });
  }
}
