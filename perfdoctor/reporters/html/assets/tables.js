// Tables: all rows, sorted by any column, filtered by any text, copied for a spreadsheet or for Markdown.

const ROWS_AT_ONCE = 25;

/** A table of the page's data in place of its first rows. */
class DataTable {
  constructor(table, data) {
    this.table = table;
    this.data = data;
    this.count = data.columns[0].texts.length;
    this.words = Array.from({ length: this.count }, (_, row) =>
      data.columns.map((column) => `${column.texts[row]}\n${column.whole?.[row] ?? ""}`).join("\n").toLowerCase());
    this.sortedBy = data.columns.findIndex((column) => column.name === data.sorted_by);
    this.descending = true;
    this.order = Array.from({ length: this.count }, (_, row) => row);
    this.shown = ROWS_AT_ONCE;
    this.showsAll = !data.columns.some((column) => !column.main);
    this.tools = this.makeTools();
    this.render();
  }

  get columns() {
    return this.showsAll ? this.data.columns : this.data.columns.filter((column) => column.main);
  }

  makeTools() {
    const tools = element("div", "tools");
    const label = tools.appendChild(element("label", "", "Filter "));
    this.filter = label.appendChild(document.createElement("input"));
    this.filter.type = "search";
    this.filter.placeholder = "text in any column";
    this.filter.addEventListener("input", () => this.render());
    if (!this.showsAll) {
      const all = tools.appendChild(element("button", "", "All columns"));
      all.type = "button";
      all.setAttribute("aria-pressed", "false");
      all.addEventListener("click", () => {
        this.showsAll = !this.showsAll;
        all.setAttribute("aria-pressed", String(this.showsAll));
        this.render();
      });
    }
    for (const [title, makeText] of [["Copy as TSV", toTsv], ["Copy as Markdown", toMarkdown]]) {
      const button = tools.appendChild(element("button", "", title));
      button.type = "button";
      button.addEventListener("click", () => copyText(button, makeText(this.cells())));
    }
    this.status = tools.appendChild(element("span", "quiet"));
    this.status.setAttribute("role", "status");
    const region = this.table.closest(".scroll");
    region.before(tools);
    this.moreButton = element("button", "more-rows", "");
    this.moreButton.type = "button";
    this.moreButton.addEventListener("click", () => {
      this.shown = this.count;
      this.render();
    });
    region.after(this.moreButton);
    return tools;
  }

  /** The rows that the filter leaves, in order. */
  get rows() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.order.filter((row) => wanted.every((word) => this.words[row].includes(word)));
  }

  /** All shown cells as texts, the heading first; what is copied is what one sees, of all rows that the filter leaves. */
  cells() {
    const columns = this.columns;
    return [columns.map((column) => column.title), ...this.rows.map((row) => columns.map((column) => column.texts[row]))];
  }

  sort(column) {
    const index = this.data.columns.indexOf(column);
    this.descending = index === this.sortedBy ? !this.descending : column.figure;
    this.sortedBy = index;
    const values = column.values ?? column.texts;
    const sign = this.descending ? -1 : 1;
    this.order.sort((a, b) => {
      if (values[a] === values[b]) return a - b;
      if (values[a] === null) return 1;
      if (values[b] === null) return -1;
      return sign * (column.values ? values[a] - values[b] : values[a].localeCompare(values[b]));
    });
    this.render();
  }

  render() {
    const rows = this.rows, columns = this.columns;
    const head = element("tr");
    for (const column of columns) head.append(this.heading(column));
    this.table.tHead.replaceChildren(head);
    const body = document.createDocumentFragment();
    for (const row of rows.slice(0, this.shown)) {
      const line = body.appendChild(element("tr"));
      for (const column of columns) line.append(cellOf(column, row));
    }
    this.table.tBodies[0].replaceChildren(body);
    const hidden = rows.length - Math.min(rows.length, this.shown);
    this.moreButton.hidden = !hidden;
    this.moreButton.textContent = `Show ${hidden.toLocaleString("en-US")} more`;
    this.status.textContent = rows.length < this.count ? `${rows.length} of ${formatCount(this.count, "row")}` : "";
  }

  heading(column) {
    const cell = element("th", column.figure ? "figure" : "");
    cell.scope = "col";
    const isSorted = this.data.columns[this.sortedBy] === column;
    cell.setAttribute("aria-sort", isSorted ? (this.descending ? "descending" : "ascending") : "none");
    const button = cell.appendChild(element("button", "sort", column.title));
    button.type = "button";
    if (column.description) button.title = column.description;
    if (isSorted) button.append(this.descending ? " \u25be" : " \u25b4");
    button.addEventListener("click", () => {
      this.sort(column);
      const at = this.columns.indexOf(column);
      this.table.tHead.rows[0].cells[at].firstChild.focus();
    });
    return cell;
  }
}

function cellOf(column, row) {
  const cell = element("td", column.figure ? "figure" : "", column.texts[row]);
  if (column.whole?.[row]) cell.title = column.whole[row];
  if (column.bar && column.values[row] !== null) {
    cell.classList.add("with-bar");
    cell.style.setProperty("--share", `${(100 * Math.min(column.values[row], 1)).toFixed(1)}%`);
  }
  return cell;
}

/** The table of the outcomes, which the template has whole: filtered in place. */
function startOutcomes(table) {
  const rows = [...table.tBodies[0].rows];
  const data = {
    id: "outcomes", title: "outcomes", sorted_by: "",
    columns: [...table.tHead.rows[0].cells].map((head, at) => {
      const figure = head.classList.contains("figure");
      const texts = rows.map((row) => row.cells[at].textContent);
      const column = { name: head.textContent, title: head.textContent, description: "", main: true, figure, bar: false, texts };
      if (figure) column.values = texts.map(parseFloat);
      return column;
    }),
  };
  return new DataTable(table, data);
}

function toTsv(cells) {
  return cells.map((row) => row.map((text) => text.replaceAll(/[\t\n]/g, " ")).join("\t")).join("\n");
}

function toMarkdown([head, ...rows]) {
  const line = (cells) => `| ${cells.map((text) => text.replaceAll(/([\\|`*_<>[\]])/g, "\\$1")).join(" | ")} |`;
  return [line(head), `|${head.map(() => "---").join("|")}|`, ...rows.map(line)].join("\n");
}

function startTables() {
  const byId = new Map(pageData().tables.map((table) => [table.id, table]));
  for (const table of document.querySelectorAll("table[data-table]")) {
    const details = table.closest("details");
    const start = () => {
      if (table.dataset.started) return;
      table.dataset.started = "yes";
      const data = byId.get(table.dataset.table);
      if (data) new DataTable(table, data);
      else startOutcomes(table);
    };
    if (details.open) whenNear(details, start);
    details.addEventListener("toggle", () => details.open && start());
  }
}
