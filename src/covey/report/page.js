// Draws the report's charts and makes its controls work, without any library. The numbers are in the element #data,
// which document.py describes. Names come from result files: they only ever become text, never markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 7;
  const DASHES = 4;
  const POLL_MILLISECONDS = 2000;
  const data = JSON.parse(document.getElementById("data").textContent);
  const store = openStore("covey-report");
  const state = {
    hidden: new Set(store.get("hidden", [])), // names of algorithms
    x: store.get("x", "frames"),
    logX: store.get("logX", false),
    logY: store.get("logY", false),
    seeds: store.get("seeds", false),
    references: store.get("references", true),
    collected: store.get("collected", false),
  };

  // ------------------------------------------------------------------------------------------------------ elements

  function element(name, attributes = {}, ...children) {
    return fill(document.createElement(name), attributes, children);
  }

  function svg(name, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, name), attributes, children);
  }

  function fill(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function look(index) {
    return `s${index % COLOURS} d${Math.floor(index / COLOURS) % DASHES}`;
  }

  /** Keeps the user's choices while the tab is open. Browsers may refuse to store anything. */
  function openStore(prefix) {
    const key = (name) => `${prefix}-${name}`;
    return {
      get(name, fallback) {
        try {
          return JSON.parse(sessionStorage.getItem(key(name))) ?? fallback;
        } catch {
          return fallback;
        }
      },
      set(name, value) {
        try {
          sessionStorage.setItem(key(name), JSON.stringify(value));
        } catch {
          // the choice is forgotten
        }
      },
    };
  }

  // ------------------------------------------------------------------------------------------------------- numbers

  function formatNumber(value) {
    if (value === null || value === undefined) return "n/a";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
    const places = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
    return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  }

  function formatTick(value) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(4))}${letter}`;
    }
    return String(Number(value.toPrecision(4)));
  }

  /** A scale from [low, high] to pixels [start, end], linear or logarithmic. */
  function makeScale(low, high, start, end, log) {
    const f = log ? Math.log10 : (value) => value;
    if (low === high) {
      const room = Math.abs(low) / 10 + 1e-9;
      [low, high] = log ? [low / 2, high * 2] : [low - room, high + room];
    }
    const scale = (value) => start + ((f(value) - f(low)) / (f(high) - f(low))) * (end - start);
    scale.invert = (pixel) => {
      const position = f(low) + ((pixel - start) / (end - start)) * (f(high) - f(low));
      return log ? 10 ** position : position;
    };
    scale.ticks = (number) => (log ? logTicks(low, high, number) : linearTicks(low, high, number));
    return scale;
  }

  function linearTicks(low, high, number) {
    const rough = (high - low) / number;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
    const ticks = [];
    for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
    return ticks;
  }

  function logTicks(low, high, number) {
    const decades = Math.log10(high / low);
    const factors = decades > 2.5 ? [1] : decades > 1 ? [1, 3] : [1, 2, 3, 5, 7];
    const skip = Math.max(1, Math.ceil(decades / number));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += skip) {
      for (const factor of factors) {
        const tick = factor * 10 ** power;
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    }
    return ticks;
  }

  function extent(values) {
    return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  }

  /** Moves `heights` as little as possible so that labels do not overlap; as in drawing.py. */
  function spread(heights, apart, low, high) {
    const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]);
    const mean = (block) => block.reduce((sum, start) => sum + start, 0) / block.length;
    const blocks = [];
    order.forEach((index, place) => {
      blocks.push([heights[index] - place * apart]);
      while (blocks.length > 1 && mean(blocks.at(-2)) > mean(blocks.at(-1))) blocks.push(blocks.splice(-2).flat());
    });
    const starts = blocks.flatMap((block) => block.map(() => mean(block)));
    const highest = high - (order.length - 1) * apart;
    const moved = [];
    order.forEach((index, place) => (moved[index] = Math.max(Math.min(starts[place], highest), low) + place * apart));
    return moved;
  }

  // -------------------------------------------------------------------------------------------------------- charts

  /** For each kind of chart: its lines, the levels to compare with, and the labels of its axes. */
  const KINDS = {
    efficiency: () => ({
      lines: (state.x === "frames" ? data.curves_by_frames : data.curves_by_seconds).map(asLine),
      levels: [],
      xLabel: xLabel(),
      yLabel: "IQM of scores",
      followsSwitches: true,
    }),
    profiles: () => ({
      lines: data.profiles.map((profile) => asLine({ ...profile, x: profile.thresholds, y: profile.share, runs: [] })),
      levels: [],
      xLabel: "score τ",
      yLabel: "share of runs above τ",
      yRange: [0, 1],
      followsSwitches: false,
    }),
    task: (index) => {
      const curves = data.task_curves[index];
      const collected = state.collected && curves.collected_by_frames.length > 0;
      return {
        lines: curves[`${collected ? "collected_" : ""}by_${state.x}`].map(asLine),
        levels: levelsOf(data.scales[index]),
        xLabel: xLabel(),
        yLabel: collected ? `${data.metric}, as collected` : data.metric,
        followsSwitches: true,
      };
    },
  };

  function xLabel() {
    return state.x === "frames" ? "frames" : "seconds of training";
  }

  function asLine(curve) {
    const index = data.algorithms.indexOf(curve.algorithm);
    return { name: curve.algorithm, index, x: curve.x, ...curve.y, runs: curve.runs };
  }

  function levelsOf(scale) {
    const published = scale.references.map(({ algorithm, value, source }) => ({ name: algorithm, value, source }));
    if (scale.random === null) return published;
    return [...published, { name: "random", value: scale.random, source: "a random team", random: true }];
  }

  class Chart {
    constructor(host) {
      this.host = host;
      this.canvas = svg("svg", { role: "img", "aria-label": host.dataset.label, tabindex: "0" });
      this.readout = element("div", { class: "readout", role: "status", hidden: "" });
      host.append(this.canvas, this.readout);
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => this.leave());
      this.canvas.addEventListener("blur", () => this.leave());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.host.clientWidth !== this.width && this.draw()).observe(host);
    }

    draw() {
      const spec = KINDS[this.host.dataset.chart](Number(this.host.dataset.index));
      this.width = this.host.clientWidth;
      this.spec = spec;
      this.lines = spec.lines.filter((line) => !state.hidden.has(line.name));
      this.leave();
      this.canvas.replaceChildren();
      this.layOut();
      if (this.lines.length === 0) return this.drawNothing();
      this.drawAxes();
      this.drawLevels();
      for (const line of this.lines) this.drawLine(line);
      this.marks = svg("g", { "aria-hidden": "true" });
      this.canvas.append(this.marks);
    }

    layOut() {
      this.narrow = this.width < 560;
      const height = this.narrow ? 270 : 340;
      this.canvas.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
      this.canvas.setAttribute("height", height);
      this.labelsOutside = !this.narrow && this.spec.levels.length > 0 && state.references;
      this.box = { left: 54, right: this.width - (this.labelsOutside ? 120 : 14), top: 12, bottom: height - 44 };
      const log = { x: state.logX && this.spec.followsSwitches, y: state.logY && this.spec.followsSwitches };
      for (const line of this.lines) {
        const drawable = (i) => line.value[i] !== null && (!log.x || line.x[i] > 0);
        line.points = [...line.x.keys()].filter(drawable);
      }
      this.lines = this.lines.filter((line) => line.points.length > 0);
      if (this.lines.length === 0) return;
      const xs = this.lines.flatMap((line) => line.points.map((i) => line.x[i]));
      const [low, high] = this.spec.yRange ?? this.range();
      this.logY = log.y && low > 0;
      this.x = makeScale(...extent(xs), this.box.left, this.box.right, log.x);
      this.y = makeScale(low, high, this.box.bottom, this.box.top, this.logY);
      this.low = low;
      this.high = high;
    }

    /** The range of every mean, of intervals unless they would flatten the means, and of levels that are near. */
    range() {
      const values = this.lines.flatMap((line) => line.points.map((i) => line.value[i]));
      const [low, high] = extent(values);
      const room = Math.max(high - low, 0.02 * Math.max(Math.abs(low), Math.abs(high)), 1e-9);
      const clip = (value) => Math.min(Math.max(value, low - 0.6 * room), high + 0.6 * room);
      const edges = this.lines.flatMap((line) => line.points.flatMap((i) => [line.low[i], line.high[i]]));
      const seeds = state.seeds ? this.lines.flatMap((line) => line.runs.flat()) : [];
      const levels = state.references ? this.spec.levels.map((level) => level.value) : [];
      const seen = [
        ...values,
        ...edges.concat(seeds).filter((value) => value !== null).map(clip),
        ...levels.filter((value) => value >= low - room && value <= high + room),
      ];
      const [least, most] = extent(seen);
      const margin = 0.04 * Math.max(most - least, room);
      // A logarithmic axis begins at the smallest value that it can show.
      if (state.logY && low > 0) return [Math.max(least, low / 2), most * 1.05];
      return [least - margin, most + margin];
    }

    drawNothing() {
      const message = this.spec.lines.length === 0 ? "nothing to draw here" : "every algorithm is switched off";
      this.canvas.append(svg("text", { class: "empty", x: this.width / 2, y: 120, "text-anchor": "middle" }, message));
      this.marks = null;
    }

    drawAxes() {
      const { left, right, top, bottom } = this.box;
      const layer = svg("g", { "aria-hidden": "true" });
      for (const tick of this.y.ticks(6)) {
        const y = this.y(tick);
        layer.append(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
        layer.append(svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, formatTick(tick)));
      }
      for (const tick of this.x.ticks(Math.max(3, Math.floor((right - left) / 75)))) {
        layer.append(svg("text", { x: this.x(tick), y: bottom + 18, "text-anchor": "middle" }, formatTick(tick)));
        layer.append(svg("line", { class: "frame", x1: this.x(tick), x2: this.x(tick), y1: bottom, y2: bottom + 4 }));
      }
      layer.append(svg("line", { class: "frame", x1: left, x2: right, y1: bottom, y2: bottom }));
      const label = { class: "axis-label", y: bottom + 37 };
      const refused = state.logY && this.spec.followsSwitches && !this.logY ? " (not above 0: no log axis)" : "";
      layer.append(svg("text", { ...label, x: right, "text-anchor": "end" }, this.spec.xLabel));
      layer.append(svg("text", { ...label, x: left }, `↑ ${this.spec.yLabel}${refused}`));
      const clip = svg("clipPath", { id: `clip-${this.host.id}` });
      clip.append(svg("rect", { x: left, y: top - 2, width: Math.max(0, right - left), height: bottom - top + 3 }));
      this.canvas.append(clip, layer);
    }

    drawLevels() {
      if (!state.references) return;
      const { left, right, top, bottom } = this.box;
      const shown = this.spec.levels.filter((level) => level.value >= this.low && level.value <= this.high);
      const raised = this.labelsOutside ? 4 : -4;
      const heights = spread(shown.map((level) => this.y(level.value) + raised), 13, top, bottom + 4);
      shown.forEach((level, i) => {
        const y = this.y(level.value);
        const title = svg("title", {}, `${level.name} ${formatNumber(level.value)}: ${level.source}`);
        const kind = { class: level.random ? "level random" : "level" };
        const place = this.labelsOutside ? { x: right + 6 } : { x: right - 4, "text-anchor": "end" };
        const name = level.name.length > 15 ? `${level.name.slice(0, 14)}…` : level.name;
        const text = `${name} ${formatTick(level.value)}`;
        const label = svg("text", { class: "level-label", ...place, y: heights[i] }, text);
        this.canvas.append(svg("line", { ...kind, x1: left, x2: right, y1: y, y2: y }, title), label);
      });
    }

    drawLine(line) {
      const clip = { "clip-path": `url(#clip-${this.host.id})` };
      const layer = svg("g", { class: `series ${look(line.index)}`, "data-series": line.index, ...clip });
      const at = (values) => (i) => `${this.x(line.x[i]).toFixed(1)},${this.clampedY(values[i]).toFixed(1)}`;
      const banded = line.points.filter((i) => line.low[i] !== null && line.high[i] !== null);
      if (banded.length > 1) {
        const outline = [...banded.map(at(line.high)), ...banded.toReversed().map(at(line.low))];
        layer.append(svg("path", { class: "band", d: `M${outline.join("L")}Z` }));
      }
      if (state.seeds) {
        // An unfinished seed ends before the others.
        const drawn = line.runs.map((run) => line.points.filter((i) => run[i] !== null).map(at(run)));
        const paths = drawn.filter((points) => points.length > 0).map((points) => `M${points.join("L")}`);
        layer.append(...paths.map((d) => svg("path", { class: "seed", d })));
      }
      layer.append(svg("path", { class: "line", d: `M${line.points.map(at(line.value)).join("L")}` }));
      if (line.points.length === 1) {
        const [i] = line.points;
        layer.append(svg("circle", { class: "dot", cx: this.x(line.x[i]), cy: this.y(line.value[i]), r: 4 }));
      }
      this.canvas.append(layer);
    }

    /** A logarithmic axis cannot show values up to 0: they end at the frame. */
    clampedY(value) {
      return this.logY && value <= 0 ? this.box.bottom + 20 : this.y(value);
    }

    // ------------------------------------------------------------------------------------------- pointing at values

    point(event) {
      if (!this.marks) return;
      const x = event.clientX - this.canvas.getBoundingClientRect().left;
      this.show(this.nearest(this.x.invert(x)));
    }

    key(event) {
      if (!this.marks) return;
      const places = this.places();
      const now = this.at === null ? -1 : places.indexOf(this.at);
      const last = places.length - 1;
      const steps = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, Home: 0, End: last };
      if (event.key === "Escape") return this.leave();
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.show(places[Math.min(Math.max(steps[event.key], 0), last)]);
    }

    places() {
      const all = new Set(this.lines.flatMap((line) => line.points.map((i) => line.x[i])));
      return [...all].sort((a, b) => a - b);
    }

    nearest(x) {
      return this.places().reduce((best, place) => (Math.abs(place - x) < Math.abs(best - x) ? place : best));
    }

    show(x) {
      this.at = x;
      const found = this.lines.map((line) => ({ line, i: this.closestPoint(line, x) })).filter(({ i }) => i !== null);
      found.sort((a, b) => b.line.value[b.i] - a.line.value[a.i]);
      const pixel = this.x(x);
      const guide = { class: "guide", x1: pixel, x2: pixel, y1: this.box.top, y2: this.box.bottom };
      this.marks.replaceChildren(svg("line", guide));
      for (const { line, i } of found) {
        const place = { cx: this.x(line.x[i]), cy: this.y(line.value[i]), r: 3.5 };
        this.marks.append(svg("circle", { class: `dot ${look(line.index)}`, ...place }));
      }
      const where = Number.isInteger(x) ? x.toLocaleString("en-US") : formatNumber(x);
      const entries = found.map(({ line, i }) => this.entry(line, i));
      this.readout.replaceChildren(element("b", {}, `${where} ${this.spec.xLabel}`), ...entries);
      this.readout.hidden = false;
      const width = this.readout.offsetWidth + 16;
      this.readout.style.left = `${Math.max(0, pixel + width > this.width ? pixel - width : pixel + 16)}px`;
      this.readout.style.top = `${this.narrow ? this.box.bottom + 44 : this.box.top}px`; // not over a small chart
    }

    /** The index of a line's point closest to x; null if it is too far away. */
    closestPoint(line, x) {
      const near = line.points.reduce((best, i) => (Math.abs(line.x[i] - x) < Math.abs(line.x[best] - x) ? i : best));
      return Math.abs(this.x(line.x[near]) - this.x(x)) <= 24 ? near : null;
    }

    entry(line, i) {
      const [low, high] = [line.low[i], line.high[i]];
      const interval = low === null || high === null ? "" : ` [${formatNumber(low)}, ${formatNumber(high)}]`;
      const value = element("i", {}, `${formatNumber(line.value[i])}${interval}`);
      return element("span", {}, swatch(line.index), line.name, value);
    }

    leave() {
      this.at = null;
      this.marks?.replaceChildren();
      this.readout.hidden = true;
    }
  }

  function swatch(index) {
    const line = svg("line", { class: `stroke ${look(index)}`, x1: 0, x2: 24, y1: 5, y2: 5 });
    return svg("svg", { class: `swatch ${look(index)}`, viewBox: "0 0 24 10", "aria-hidden": "true" }, line);
  }

  const charts = [...document.querySelectorAll("[data-chart]")].map((host, i) => {
    host.id ||= `chart-${i}`;
    return new Chart(host);
  });

  function drawAll() {
    for (const chart of charts) chart.draw();
  }

  // ------------------------------------------------------------------------------------------------------ controls

  for (const chip of document.querySelectorAll("[data-algorithm]")) {
    const name = data.algorithms[Number(chip.dataset.algorithm)];
    chip.setAttribute("aria-pressed", String(!state.hidden.has(name)));
    chip.addEventListener("click", () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      chip.setAttribute("aria-pressed", String(!state.hidden.has(name)));
      store.set("hidden", [...state.hidden]);
      drawAll();
    });
  }

  for (const input of document.querySelectorAll("[data-switch]")) {
    const name = input.dataset.switch;
    if (input.type === "radio") input.checked = state[name] === input.value;
    else input.checked = state[name];
    input.addEventListener("change", () => {
      state[name] = input.type === "radio" ? input.value : input.checked;
      store.set(name, state[name]);
      drawAll();
    });
  }

  const theme = document.getElementById("theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  function setTheme(name) {
    if (name) document.documentElement.dataset.theme = name;
    theme.textContent = isDark() ? "Light mode" : "Dark mode";
  }
  setTheme(store.get("theme", null));
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    store.set("theme", chosen);
    setTheme(chosen);
  });

  // What the user opened stays open when the page reloads. It is identified by the headings and summaries above it,
  // without their leading numbers, which change as runs are added.
  const opened = new Set(store.get("open", []));
  const headings = {};
  const names = new Map();
  const times = new Map();
  for (const node of document.querySelectorAll("h2, h3, details")) {
    if (node.tagName !== "DETAILS") {
      if (node.tagName === "H2") delete headings.H3;
      headings[node.tagName] = node.textContent;
      continue;
    }
    const above = names.get(node.parentElement.closest("details"));
    const own = node.querySelector("summary").textContent;
    const parts = [headings.H2, headings.H3, above, own].map((text) => (text ?? "").replace(/^[\d,]+ /, ""));
    const alike = parts.join("\n");
    times.set(alike, (times.get(alike) ?? 0) + 1);
    const name = `${alike}\n${times.get(alike)}`;
    names.set(node, name);
    if (opened.has(name)) node.open = true;
    node.addEventListener("toggle", () => {
      if (node.open) opened.add(name);
      else opened.delete(name);
      store.set("open", [...opened]);
    });
  }

  // A table that is wider than the page can also be scrolled by keyboard.
  for (const box of document.querySelectorAll(".scroll")) {
    new ResizeObserver(() => {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }).observe(box);
  }

  for (const box of document.querySelectorAll(".copied")) {
    if (!navigator.clipboard) break;
    const button = element("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(box.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    box.append(button);
  }

  // Animations can be paused: a still copy replaces them.
  for (const figure of document.querySelectorAll(".teams figure")) {
    const image = figure.querySelector("img");
    const still = element("canvas", { role: "img", "aria-label": image.alt, hidden: "" });
    const button = element("button", { type: "button", "aria-label": `Pause: ${image.alt}` }, "Pause");
    const toggle = () => {
      const stop = still.hidden;
      if (stop) {
        [still.width, still.height] = [image.naturalWidth, image.naturalHeight];
        still.getContext("2d").drawImage(image, 0, 0);
      }
      still.hidden = !stop;
      image.hidden = stop;
      button.textContent = stop ? "Play" : "Pause";
      button.setAttribute("aria-label", `${button.textContent}: ${image.alt}`);
    };
    button.addEventListener("click", toggle);
    image.after(still);
    figure.querySelector("figcaption").append(button);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) image.decode().then(toggle, () => {});
  }

  // ---------------------------------------------------------------------------------------------------------- live

  // `covey report serve=true` rebuilds the page while experiments run: when its date changes, reload it.
  const live = document.getElementById("live");
  async function poll(known) {
    try {
      const answer = await fetch(location.href, { method: "HEAD", cache: "no-store" });
      const date = answer.headers.get("Last-Modified");
      if (known && date && date !== known) return location.reload();
      setTimeout(() => poll(known ?? date), POLL_MILLISECONDS);
    } catch {
      live.textContent = "no longer updated";
      live.classList.add("stopped");
    }
  }
  if (["127.0.0.1", "localhost", "[::1]"].includes(location.hostname)) {
    live.hidden = false;
    poll(null);
  }

  drawAll();
})();
