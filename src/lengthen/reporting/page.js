// Draws the figures and makes their switches work. Everything shown comes from the JSON in the page.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const GAP = 24, AXES = 62, NARROWEST = 230;
  const state = new Map(); // figure name -> {figure, frame, view, linear, width, drawn}
  let hidden = [];

  // A figure's definition as it is to be drawn: fitted to its frame, on the chosen scale.
  function definition(item) {
    const spec = structuredClone(item.figure.spec);
    const width = item.frame.clientWidth;
    item.width = width;
    if (spec.facet) {
      const fitting = Math.floor((width + GAP) / (NARROWEST + AXES + GAP));
      spec.columns = Math.max(1, Math.min(fitting, spec.facet.sort.length));
      spec.spec.width = Math.floor((width - (spec.columns - 1) * GAP - AXES * (independent(spec) ? spec.columns : 1)) / spec.columns);
      if (spec.columns === 1 && spec.facet.sort.length > 2) spec.spec.height = 150;
    } else {
      spec.width = "container";
      spec.autosize = {type: "fit-x", contains: "padding"};
      if (width < 480) spec.height = Math.min(spec.height, 280);
    }
    if (item.linear) linearise(spec);
    return spec;
  }

  function independent(spec) {
    return spec.resolve?.scale?.y === "independent";
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
    const embedded = await vegaEmbed(item.frame, definition(item), {
      mode: "vega-lite", actions: false, renderer: "svg", config: item.figure.themes[theme], tooltip: {theme},
    });
    item.view = embedded.view;
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

  for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
    const element = document.getElementById("figure-" + figure.name);
    const item = {figure, frame: element.querySelector(".chart"), view: null, linear: false, width: 0, drawn: Promise.resolve()};
    state.set(figure.name, item);
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
