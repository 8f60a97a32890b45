// The timeline as lanes of items sorted by time, and the questions that drawing asks of them.

/** One row: the items at one depth of a track. They do not overlap, so their ends are sorted as their starts are. */
class Lane {
  constructor(track, rows) {
    this.track = track;
    this.rows = rows;
    this.length = rows.length;
  }

  start(i) {
    return this.track.start[this.rows[i]];
  }

  end(i) {
    const row = this.rows[i];
    return this.track.start[row] + this.track.dur[row];
  }

  /** The first item from `low` on that ends after a time; searched in steps that double, as it is mostly near. */
  firstEndingAfter(time, low = 0) {
    let step = 1, high = low;
    while (high < this.length && this.end(high) <= time) {
      low = high + 1;
      high += step;
      step *= 2;
    }
    high = Math.min(high, this.length);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(middle) <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The item at a time, or the nearest within `reach`; -1 where there is none. */
  itemAt(time, reach) {
    const i = this.firstEndingAfter(time - reach);
    let best = -1, nearest = reach;
    for (let each = i; each < Math.min(i + 64, this.length); each++) {
      const away = Math.max(this.start(each) - time, time - this.end(each), 0);
      if (away === 0) return this.rows[each];
      if (away <= nearest) [best, nearest] = [this.rows[each], away];
    }
    return best;
  }
}

/** The timeline's data with decoded columns. */
class TimelineModel {
  constructor(data) {
    this.names = data.names;
    this.categories = data.categories;
    this.unit = data.unit_ns;
    this.span = data.span_ns / data.unit_ns;
    this.step = data.step;
    this.leftOut = data.left_out;
    this.findings = data.findings;
    this.tracks = data.tracks.map((track, number) => makeTrack(track, number));
    this.links = data.links && {
      fromTrack: decodeColumn(data.links.from_track, Uint16Array), fromItem: decodeColumn(data.links.from_item, Uint32Array),
      toTrack: decodeColumn(data.links.to_track, Uint16Array), toItem: decodeColumn(data.links.to_item, Uint32Array),
    };
    this.count = this.tracks.reduce((sum, track) => sum + track.start.length, 0);
  }

  /** What an item is called; a gap or a phase is called as its colour is. */
  nameOf(track, row) {
    const name = this.names[track.nameId[row]];
    return name === this.categoryOf(track, row) ? categoryLabel(name) : name;
  }

  /** What fits into a box of it: a kernel's name without its namespaces, which all begin alike. */
  labelOf(track, row) {
    const name = this.nameOf(track, row);
    return track.kind === "stream" ? name.replace(/^void /, "").replace(/^(?:(?:\w+|\(anonymous namespace\))::)+/, "") : name;
  }

  categoryOf(track, row) {
    return this.categories[track.category[row]];
  }

  /** What an item is linked to: the kernels of a call, the call of a kernel, as pairs of a track and a row. */
  linkedTo(track, row) {
    if (!this.links) return [];
    this.linksOf ??= this.indexLinks();
    return this.linksOf.get(track.number * 2 ** 32 + row) ?? [];
  }

  indexLinks() {
    const { fromTrack, fromItem, toTrack, toItem } = this.links;
    const index = new Map();
    const add = (track, row, otherTrack, otherRow) => {
      const key = track * 2 ** 32 + row;
      const found = index.get(key);
      if (found) found.push([this.tracks[otherTrack], otherRow]);
      else index.set(key, [[this.tracks[otherTrack], otherRow]]);
    };
    for (let i = 0; i < fromItem.length; i++) {
      add(fromTrack[i], fromItem[i], toTrack[i], toItem[i]);
      add(toTrack[i], toItem[i], fromTrack[i], fromItem[i]);
    }
    return index;
  }

  /** Whether each name holds a text; null for no text. */
  namesWith(text) {
    if (!text) return null;
    return Uint8Array.from(this.names, (name) => name.toLowerCase().includes(text));
  }

  /** Items whose name is among `matches`, as pairs of a track and a row in the order of time. */
  itemsNamed(matches) {
    const found = [];
    for (const track of this.tracks) {
      for (let row = 0; row < track.start.length; row++) if (matches[track.nameId[row]]) found.push([track, row]);
    }
    return found.sort(([a, i], [b, j]) => a.start[i] - b.start[j]);
  }
}

function makeTrack(data, number) {
  const track = {
    number, name: data.name, kind: data.kind,
    start: decodeColumn(data.start, Uint32Array), dur: decodeColumn(data.dur, Uint32Array),
    nameId: decodeColumn(data.name_id, Uint32Array), category: decodeColumn(data.category, Uint8Array),
    depth: decodeColumn(data.depth, Uint8Array), merged: decodeColumn(data.merged, Uint32Array),
  };
  const deepest = track.depth.reduce((most, depth) => Math.max(most, depth), 0);
  const counts = new Uint32Array(deepest + 1);
  for (const depth of track.depth) counts[depth]++;
  const rows = [...counts].map((count) => new Uint32Array(count));
  counts.fill(0);
  track.depth.forEach((depth, row) => { rows[depth][counts[depth]++] = row; });
  track.lanes = rows.map((each) => new Lane(track, each));
  return track;
}
