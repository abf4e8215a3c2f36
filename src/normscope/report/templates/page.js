{ // a block of its own: the bundle declares many short names
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const GAP = 36; // pixels between two panels
  const NARROW = 560; // pixels below which legends stand under their chart
  const TITLE = 0.5; // share of the room that the title of an axis may take there
  const LABEL = 0.42; // share of the room for the labels of an axis there
  const LEAST = 150; // pixels of a panel, however small the screen
  const LETTER = 6.6; // pixels, about
  const WIDER = 1.35; // how far a panel may be stretched

  const wrapped = (text, room) => {
    const lines = [""];
    for (const word of [text].flat().join(" ").split(" ")) {
      const last = lines[lines.length - 1];
      if (last && (last.length + word.length + 1) * LETTER > room) lines.push(word);
      else lines[lines.length - 1] = last ? last + " " + word : word;
    }
    return lines;
  };
  const titled = (title, room) => {
    if (!title) return {};
    const parts = typeof title === "object" && !Array.isArray(title) ? title : {text: title};
    const subtitle = parts.subtitle ? {subtitle: wrapped(parts.subtitle, room)} : {};
    return {title: {...parts, text: wrapped(parts.text, room), ...subtitle}};
  };

  // Panels that no longer stand beside the one whose labels they shared.
  const lettered = panels => JSON.parse(JSON.stringify(panels), (key, value) => ["labels", "ticks"].includes(key) ? true : value);

  // The chart for a place of so many pixels: fewer panels in a row, then narrower ones; `besides`
  // is what a panel takes for axes and legends.
  const fitted = (spec, room, besides) => {
    const panels = spec.hconcat || spec.concat || spec.vconcat;
    if (!panels) {
      if (typeof spec.width !== "number") return spec;
      const width = Math.max(LEAST, Math.min(WIDER * spec.width, room - besides));
      return {...spec, width, ...titled(spec.title, width + besides)};
    }
    if (spec.vconcat) return {...spec, vconcat: panels.map(panel => fitted(panel, room, besides))};
    const {hconcat, concat, ...rest} = spec;
    const widest = Math.max(...panels.map(panel => panel.width || 0)) + besides;
    const most = hconcat ? panels.length : spec.columns || panels.length;
    const columns = Math.max(1, Math.min(most, Math.floor((room + GAP) / (widest + GAP))));
    const each = (room - GAP * (columns - 1)) / columns;
    const shown = columns < most ? lettered(panels) : panels;
    return {...rest, columns, concat: shown.map(panel => fitted(panel, each, besides))};
  };

  // On a narrow screen legends stand below, labels are short, and every panel has its own.
  const changes = room => ({
    legend: value => value === Object(value) ? {orient: "bottom", ...value, columns: 1} : value,
    labelLimit: value => Math.min(value, LABEL * room),
    title: value => typeof value === "string" && value.length * LETTER > TITLE * room ? wrapped(value, TITLE * room) : value,
    labels: value => value === false ? true : value,
    ticks: value => value === false ? true : value,
  });
  const stacked = (spec, room) => {
    const change = changes(room);
    return JSON.parse(JSON.stringify(spec), (key, value) => Object.hasOwn(change, key) ? change[key](value) : value);
  };
  const config = (ground, room) => {
    const ours = NORMSCOPE_CONFIGS[ground];
    const theme = {...ours, background: null, padding: 4, axis: {...ours.axis, labelSeparation: 6}};
    if (room > NARROW) return theme;
    return {...theme, legend: {...theme.legend, orient: "bottom", direction: "vertical", labelLimit: room - 60}};
  };

  const views = new Map(), done = new Set();
  let round = 0;
  const draw = async () => {
    const mine = ++round;
    document.documentElement.dataset.charts = "drawing";
    const ground = dark.matches ? "dark" : "light";
    const options = {mode: "vega-lite", renderer: "svg", actions: false, tooltip: {theme: ground}};
    for (const [id, spec] of Object.entries(NORMSCOPE_CHARTS)) {
      const figure = document.getElementById(id);
      // what is folded is drawn once it is unfolded
      if (done.has(id) || figure.closest("details:not([open])")) continue;
      const place = figure.querySelector(".live");
      const room = figure.clientWidth;
      const shown = room > NARROW ? spec : stacked(spec, room);
      for (let besides = 64, tries = 0; tries < 8; tries += 1) {
        const chart = {...fitted(shown, room, besides), config: config(ground, room)};
        const result = await window.vegaEmbed(place, chart, options);
        views.get(id)?.finalize();
        views.set(id, result);
        figure.classList.add("drawn"); // from here on it has a size
        const over = place.querySelector("svg").getBoundingClientRect().width - room;
        if (mine !== round) return;
        if (over <= 0) break;
        // a panel at its greatest width gets narrower only once `besides` has grown enough
        besides += (Math.ceil(over) + 1) * 2 ** tries;
      }
      done.add(id);
    }
    document.documentElement.dataset.charts = "drawn";
  };
  // A link into what is folded unfolds it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target?.closest("details:not([open])")) return;
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView();
  };
  const start = () => draw().catch(console.error); // the stills remain
  const again = () => { done.clear(); start(); };
  dark.addEventListener("change", again);
  document.addEventListener("toggle", event => event.target.open && event.target.querySelector("figure:not(.drawn)") && start(), true);
  window.addEventListener("hashchange", unfold);
  unfold();
  let width = document.documentElement.clientWidth, timer = 0;
  window.addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    clearTimeout(timer);
    timer = setTimeout(again, 200);
  });
  start();
}
