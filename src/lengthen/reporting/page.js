// Draws the figures and makes their switches work. Everything shown comes from the JSON in the page.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const GAP = 24, AXES = 62, NARROWEST = 230;
  const state = new Map(); // figure name -> {figure, frame, rows, view, linear, width, drawn}
  const chosen = {}; // a choice's name -> its value, the same in every figure
  let hidden = [];

  // Rows from columns: a field is a list of cells, or its few values and where each stands.
  function expanded({count, fields}) {
    const cells = Object.entries(fields).map(([name, cells]) => [name, i => Array.isArray(cells) ? cells[i] : cells.values[cells.at[i]]]);
    return Array.from({length: count}, (_, i) => Object.fromEntries(cells.map(([name, cell]) => [name, cell(i)])));
  }

  function choosable(item) {
    return Object.keys(item.figure.choices ?? {});
  }

  function chosenRows(item) {
    return item.rows.filter(row => choosable(item).every(name => row[name] === chosen[name]));
  }

  // A figure's definition as it is to be drawn: fitted to its frame, on the chosen scale.
  function definition(item) {
    let spec = structuredClone(item.figure.spec);
    const width = item.frame.clientWidth;
    item.width = width;
    if (item.rows) {
      spec.data = {values: chosenRows(item)};
      if (spec.facet) spec.facet.sort = spec.facet.sort.filter(panel => spec.data.values.some(row => row.panel === panel));
      if (chosen.statistic && item.figure.choices.statistic) entitle(spec, chosenLabel(item, "statistic"));
    }
    if (spec.facet && spec.facet.sort.length === 1) {
      const {facet, spec: panel, columns, spacing, resolve, ...rest} = spec;
      spec = {...rest, ...panel};
    }
    if (spec.facet) {
      const names = spec.data.values.filter(row => "row" in row).map(row => 7 * row.row.length + 24);
      const axes = Math.min(144, Math.max(AXES, ...names));
      const fitting = Math.floor((width + GAP) / (NARROWEST + axes + GAP));
      spec.columns = Math.max(1, Math.min(fitting, spec.facet.sort.length));
      spec.spec.width = Math.floor((width - (spec.columns - 1) * GAP - axes * (independent(spec) ? spec.columns : 1)) / spec.columns);
      if (spec.columns === 1 && spec.facet.sort.length > 2 && !spec.spec.height.step) spec.spec.height = 150;
    } else {
      spec.width = "container";
      spec.autosize = {type: "fit-x", contains: "padding"};
      if (spec.height.step) spec.height = spec.height.step * new Set(spec.data.values.map(row => row.row)).size;
      else if (width < 480) spec.height = Math.min(spec.height, 280);
    }
    if (item.linear) linearise(spec);
    return spec;
  }

  function independent(spec) {
    return spec.resolve?.scale?.y === "independent";
  }

  function entitle(node, title) {
    if (Array.isArray(node)) return node.forEach(part => entitle(part, title));
    if (node.encoding?.y?.title) node.encoding.y.title = title;
    for (const part of [node.layer, node.spec]) if (part) entitle(part, title);
  }

  function linearise(node) {
    if (Array.isArray(node)) node.forEach(linearise);
    else if (node && typeof node === "object") {
      for (const y of [node.encoding?.y, node.encoding?.y2])
        if (y?.scale?.type === "log") y.scale = {zero: false};
      for (const part of [node.layer, node.spec]) linearise(part);
    }
  }

  async function draw(item) {
    const theme = dark.matches ? "dark" : "light";
    item.view?.finalize();
    item.view = null;
    if (item.rows && chosenRows(item).length === 0) {
      item.frame.textContent = "Nothing was measured for this choice.";
      return;
    }
    const embedded = await vegaEmbed(item.frame, definition(item), {
      mode: "vega-lite", actions: false, renderer: "svg", config: item.figure.themes[theme], tooltip: {theme},
    });
    item.view = embedded.view;
    if (item.rows) item.view.addEventListener("click", (event, mark) => pick(mark?.datum));
    await hide(item);
    item.frame.dataset.drawn = theme;
  }

  async function hide(item) {
    if (item.view) await item.view.signal("hidden", hidden).runAsync();
  }

  function failed(item, error) {
    console.error(error);
    item.frame.textContent = "This chart could not be drawn; the tables hold its numbers.";
  }

  // One drawing of a figure at a time: a second waits for the first.
  function redraw(changed) {
    const items = [...state.values()].filter(changed);
    for (const item of items) item.drawn = item.drawn.then(() => draw(item)).catch(error => failed(item, error));
    return Promise.all(items.map(item => item.drawn));
  }

  // A click on a cell chooses its layer, and within a layer its head.
  function pick(cell) {
    if (cell?.row === undefined) return;
    if (chosen.layer === "all") choose("layer", cell.row);
    else choose("head", cell.head);
  }

  function choose(name, value) {
    if (chosen[name] === value) return;
    chosen[name] = value;
    const touched = [name];
    if (name === "layer") {
      chosen.head = "all";
      touched.push("head");
    }
    offer();
    redraw(item => choosable(item).some(other => touched.includes(other)));
  }

  function selectors() {
    return [...document.querySelectorAll("select[data-choice]")];
  }

  function chosenLabel(item, name) {
    const selector = item.element.querySelector(`select[data-choice="${name}"]`);
    return selector.selectedOptions[0].textContent;
  }

  // Selectors show what is chosen, and offer the heads that the layer has.
  function offer() {
    for (const selector of selectors()) {
      if (selector.dataset.choice === "head") {
        const {rows} = state.get(selector.closest("figure").id.replace("figure-", ""));
        const heads = new Set(rows.filter(row => row.layer === chosen.layer).map(row => row.head));
        for (const option of selector.options) option.hidden = option.disabled = !heads.has(option.value);
        selector.disabled = heads.size < 2;
      }
      selector.value = chosen[selector.dataset.choice];
    }
  }

  for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
    const element = document.getElementById("figure-" + figure.name);
    const rows = figure.rows ? expanded(figure.rows) : null;
    const item = {figure, element, rows, frame: element.querySelector(".chart"), view: null, linear: false, width: 0, drawn: Promise.resolve()};
    state.set(figure.name, item);
    for (const [name, value] of Object.entries(figure.choices ?? {})) chosen[name] ??= value;
    for (const choices of element.querySelectorAll(".choices")) choices.hidden = false;
    const button = element.querySelector(".scale");
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => {
        item.linear = !item.linear;
        button.setAttribute("aria-pressed", String(item.linear));
        redraw(other => other === item);
      });
    }
  }

  for (const selector of selectors()) selector.addEventListener("change", () => choose(selector.dataset.choice, selector.value));
  offer();

  // A curve switched off is off in every figure.
  const boxes = [...document.querySelectorAll(".curves input")];
  for (const box of boxes)
    box.addEventListener("change", () => {
      for (const other of boxes) if (other.value === box.value) other.checked = box.checked;
      hidden = [...new Set(boxes.filter(b => !b.checked).map(b => b.value))];
      for (const item of state.values()) hide(item);
    });

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(item => item.frame.clientWidth !== item.width), 120);
  });
  dark.addEventListener("change", () => redraw(() => true));
  redraw(() => true).then(() => { document.documentElement.dataset.ready = "true"; });
})();
