// Draws a report from the JSON block of its page. Whatever a journal holds reaches the page as text, never as markup:
// by textContent, or through `label` where Plotly would read a little markup of its own. It requests nothing.
"use strict";
(() => {
  const ABSENT = 0, ZERO = 1, LEAST = 2, MOST = 65000, INFINITE = 65534;
  const COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#c2185b", "#7570b3", "#8c6d1f", "#17a2b8", "#666666"];
  const TONE = { error: "#d93025", warning: "#e08a00", info: "#1a73e8" };
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  let run = 0, model = 0, at = null, range = null, sort = { key: 0, down: false };

  const element = (tag, text, kind) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (kind) node.className = kind;
    return node;
  };
  const label = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length > most ? "…" + text.slice(1 - most) : text);
  const number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Data

  const TYPES = { u2: Uint16Array, f4: Float32Array, f8: Float64Array };
  async function unpack(packed) {
    if (packed === null) return null;
    const text = atob(packed.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new TYPES[packed.kind](await new Response(stream).arrayBuffer());
  }
  const TOTALS = ["first_step", "total_high", "total_low"];
  const ALL = [...TOTALS, "last_step", "high", "low", "max_norm", "coefficient", "skipped"];
  async function open(one, names = ALL) { // a model's arrays, each unpacked once
    const packed = names.filter((name) => one[name] !== null && "data" in one[name]);
    const arrays = await Promise.all(packed.map((name) => unpack(one[name])));
    packed.forEach((name, i) => { one[name] = arrays[i]; });
    if (one.low === null && names === ALL) one.low = one.high;
    return one;
  }
  async function openSeries(series) {
    if (series && !series.opened) {
      [series.steps, series.values] = await Promise.all([unpack(series.steps), unpack(series.values)]);
      series.opened = true;
    }
    return series;
  }
  const logOf = (code, scale) => scale[0] + (code - LEAST) / (MOST - LEAST) * (scale[1] - scale[0]);
  const valueOf = (code, scale) =>
    code === ABSENT ? NaN : code === ZERO ? 0 : code <= MOST ? 10 ** logOf(code, scale) : code === INFINITE ? Infinity : NaN;
  const said = (code, scale) => (code === ABSENT ? "absent" : code > INFINITE ? "NaN" : number(valueOf(code, scale)));
  const current = () => data.runs[run].models[model];

  function visible(one) { // bins within the zoomed range: [from, to)
    if (!range) return [0, one.bins];
    let from = 0, to = one.bins;
    while (from < to - 1 && one.last_step[from] < range[0]) from++;
    while (to - 1 > from && one.first_step[to - 1] > range[1]) to--;
    return [from, to];
  }

  // The map, with the total and the loss below it

  function grid(one, most) { // `most`: pixels across the map; a browser leaves out columns beyond those
    const [from, to] = visible(one);
    const width = Math.max(1, Math.ceil((to - from) / most));
    const columns = Math.ceil((to - from) / width);
    const kind = $("extreme").value, colour = $("colour").value;
    const codes = one[kind], layers = one.layers.length;
    const z = new Array(layers), odd = new Array(layers), x = new Float64Array(columns);
    let anyOdd = false;
    for (let c = 0; c < columns; c++) x[c] = one.first_step[from + c * width];
    for (let layer = 0; layer < layers; layer++) {
      const row = new Array(columns), strange = new Array(columns), base = layer * one.bins;
      let shift = 0;
      if (colour === "rms") shift = -Math.log10(one.numel[layer]) / 2;
      if (colour === "own") shift = one.stats[layer][1] > 0 ? -Math.log10(one.stats[layer][1]) : 0;
      for (let c = 0; c < columns; c++) {
        const begin = from + c * width, end = Math.min(begin + width, to);
        let code = codes[base + begin];
        for (let b = begin + 1; b < end; b++) {
          const next = codes[base + b];
          if (kind === "high" ? next > code : next !== ABSENT && (code === ABSENT || next < code)) code = next;
        }
        row[c] = code >= LEAST && code <= MOST ? logOf(code, one.scale) + shift : null;
        strange[c] = code === ZERO ? 0 : code > MOST ? 1 : null;
        anyOdd = anyOdd || strange[c] !== null;
      }
      z[layer] = row;
      odd[layer] = strange;
    }
    return { x, z, odd: anyOdd ? cropped(x, odd) : null };
  }

  function cropped(x, cells) { // the rectangle that holds all cells that are not null: drawing costs by the cell
    let top = cells.length, bottom = 0, left = x.length, right = 0;
    cells.forEach((row, layer) => row.forEach((cell, c) => {
      if (cell === null) return;
      top = Math.min(top, layer); bottom = Math.max(bottom, layer); left = Math.min(left, c); right = Math.max(right, c);
    }));
    // A cell's width and height are told by its neighbours'.
    if (top === bottom) bottom < cells.length - 1 ? bottom++ : top > 0 && top--;
    if (left === right) right < x.length - 1 ? right++ : left > 0 && left--;
    return { x: x.slice(left, right + 1), y0: top, z: cells.slice(top, bottom + 1).map((row) => row.slice(left, right + 1)) };
  }

  function envelope(high, low, scale, one) { // two points a bin, its extremes; a gap where one is not finite
    const x = [], y = [];
    for (let b = 0; b < one.bins; b++) {
      const lowest = valueOf(low[b], scale), highest = valueOf(high[b], scale);
      x.push(one.first_step[b]);
      y.push(Number.isFinite(lowest) && lowest > 0 ? lowest : null);
      if (high[b] !== low[b]) {
        x.push(one.first_step[b]);
        y.push(Number.isFinite(highest) ? highest : null);
      }
    }
    return { x, y };
  }

  function limits(shown) { // colours over the bulk, so that one odd cell does not wash out the rest
    const some = [];
    for (const row of shown.z) for (let c = 0; c < row.length; c += Math.max(1, row.length >> 6)) if (row[c] !== null) some.push(row[c]);
    if (!some.length) return [0, 1];
    some.sort((a, b) => a - b);
    const low = some[Math.floor(some.length * 0.002)], high = some[Math.ceil(some.length * 0.998) - 1];
    return high - low > 1e-9 ? [low, high] : [low - 0.5, high + 0.5];
  }

  function ticks(one, room, most) { // `room`: how many labels have room; `most`: their longest
    const every = Math.max(1, Math.ceil(one.layers.length / room)), values = [], texts = [];
    for (let i = 0; i < one.layers.length; i += every) {
      values.push(i);
      texts.push(label(short(one.layers[i], most)));
    }
    return { values, texts };
  }
  const mapHeight = (one) => Math.min(1000, Math.max(260, one.layers.length * 5));

  function whole(one) {
    const first = one.first_step[0], last = one.last_step[one.bins - 1], margin = (last - first || 1) / Math.max(2, 2 * one.bins);
    return [first - margin, last + margin];
  }
  function axis(more) {
    // Plotly would measure every label, several times, to find margins: `room` measures once, on no page.
    return Object.assign({ gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: false, ticklabeloverflow: "allow" }, more);
  }
  const FONT = '"Open Sans", verdana, arial, sans-serif'; // Plotly's own
  const ruler = document.createElement("canvas").getContext("2d");
  function room(texts, size) { // pixels that the longest text needs
    ruler.font = `${size}px ${FONT}`;
    return Math.ceil(Math.max(0, ...texts.map((text) => ruler.measureText(text).width)));
  }
  function legendRoom(width, traces) { // pixels in height that a legend beside a plot of this width needs
    let rows = 1, taken = 0;
    const longest = room(traces.map((trace) => (trace.showlegend === false ? "" : trace.name || "")), 11) + 45;
    for (const trace of traces) {
      if (trace.showlegend === false) continue;
      if (taken && taken + longest > width) { rows++; taken = 0; }
      taken += longest;
    }
    return (rows > 1 ? 32 : 12) + 19 * rows; // below the buttons, where they would meet
  }
  function layout(more) {
    more.margin.autoexpand = false;
    return Object.assign({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--text"), size: 12 },
      hovermode: "closest", showlegend: true,
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { size: 11 } },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--dim"), activecolor: css("--accent") },
    }, more);
  }

  async function drawMap() {
    const one = await open(current()), story = data.runs[run];
    const [loss, rate] = [await openSeries(story.loss), await openSeries(story.learning_rate)];
    const node = $("map"), tick = ticks(one, mapHeight(one) / 14, Math.max(12, Math.min(38, Math.floor(node.clientWidth / 24))));
    const left = Math.max(76, room(tick.texts, 10) + 10), right = rate ? 84 : 76;
    const shown = grid(one, Math.max(100, node.clientWidth - left - right)), [zmin, zmax] = limits(shown);
    const decades = [], texts = [];
    const stride = Math.max(1, Math.ceil((zmax - zmin) / 8));
    for (let d = Math.ceil(zmin); d <= zmax; d += stride) { decades.push(d); texts.push("1e" + d); }
    const bar = { title: { text: $("colour").value === "own" ? "of its median" : $("colour").value, side: "right" }, thickness: 12, len: 0.5, y: 1, yanchor: "top" };
    if (decades.length > 1) Object.assign(bar, { tickvals: decades, ticktext: texts });
    const traces = [{
      type: "heatmap", x: shown.x, z: shown.z, zmin, zmax, colorscale: "Viridis", hoverinfo: "none", showlegend: false, colorbar: bar, xaxis: "x", yaxis: "y",
    }];
    if (shown.odd) {
      traces.push({
        type: "heatmap", x: shown.odd.x, y0: shown.odd.y0, dy: 1, z: shown.odd.z, zmin: 0, zmax: 1, showscale: false, hoverinfo: "skip", showlegend: false, xaxis: "x", yaxis: "y",
        colorscale: [[0, "#000000"], [0.5, "#000000"], [0.5, "#ff2d95"], [1, "#ff2d95"]],
      });
    }
    const total = envelope(one.total_high, one.total_low, one.total_scale, one);
    traces.push({ type: "scatter", mode: "lines", name: "total norm", x: total.x, y: total.y, line: { width: 1.1, color: COLOURS[0] }, xaxis: "x", yaxis: "y2", hovertemplate: "step %{x}: %{y:.4g}<extra>total norm</extra>" });
    const clip = { x: [], y: [] }, skipped = { x: [], y: [] }, broken = { x: [], y: [] };
    const floor = 10 ** one.total_scale[0];
    for (let b = 0; b < one.bins; b++) {
      if (!Number.isNaN(one.max_norm[b])) { clip.x.push(one.first_step[b]); clip.y.push(one.max_norm[b]); }
      if (one.skipped[b] > 0) { skipped.x.push(one.first_step[b]); skipped.y.push(floor); }
      if (one.total_high[b] > MOST) { broken.x.push(one.first_step[b]); broken.y.push(10 ** one.total_scale[1]); }
    }
    if (clip.x.length) traces.push({ type: "scatter", mode: "lines", name: "clip threshold", x: clip.x, y: clip.y, line: { dash: "dash", width: 1.3, color: COLOURS[1] }, xaxis: "x", yaxis: "y2", hovertemplate: "%{y:.4g}<extra>clip threshold</extra>" });
    if (skipped.x.length) traces.push({ type: "scatter", mode: "markers", name: "skipped step", x: skipped.x, y: skipped.y, marker: { symbol: "x", size: 8, color: COLOURS[3] }, xaxis: "x", yaxis: "y2", hovertemplate: "step %{x}<extra>skipped</extra>" });
    if (broken.x.length) traces.push({ type: "scatter", mode: "markers", name: "non-finite", x: broken.x, y: broken.y, marker: { symbol: "triangle-up", size: 9, color: "#ff2d95" }, xaxis: "x", yaxis: "y2", hovertemplate: "step %{x}<extra>non-finite</extra>" });
    if (loss) traces.push({ type: "scatter", mode: "lines", name: label(short(loss.name, 40)), x: loss.steps, y: loss.values, line: { width: 1.1, color: COLOURS[2] }, xaxis: "x", yaxis: "y3", hovertemplate: "step %{x}: %{y:.4g}<extra>loss</extra>" });
    if (rate) traces.push({ type: "scatter", mode: "lines", name: label(short(rate.name, 40)), x: rate.steps, y: rate.values, line: { width: 1, dash: "dot", color: COLOURS[4] }, xaxis: "x", yaxis: "y4", hovertemplate: "%{y:.4g}<extra>learning rate</extra>" });
    const alerts = story.alerts.filter((alert) => alert.step !== null);
    if (alerts.length) traces.push({
      type: "scatter", mode: "markers", name: "alert", x: alerts.map((a) => a.step), y: alerts.map(() => -0.5), cliponaxis: false, xaxis: "x", yaxis: "y",
      marker: { symbol: "triangle-down", size: 12, color: alerts.map((a) => TONE[a.severity] || "#888") }, customdata: alerts.map((_, i) => i), hoverinfo: "none",
    });
    const bottom = loss || rate;
    const height = mapHeight(one) + (bottom ? 330 : 180);
    const share = (bottom ? 300 : 150) / height;
    const figure = layout({
      height, margin: { l: left, r: right, t: 24, b: 42 + legendRoom(node.clientWidth - left - right, traces) },
      xaxis: axis({ title: { text: "step" }, anchor: bottom ? "y3" : "y2", range: range || whole(one), showspikes: true, spikethickness: 1, spikecolor: css("--dim"), spikemode: "across", spikesnap: "cursor" }),
      yaxis: axis({ domain: [share + 0.03, 1], tickvals: tick.values, ticktext: tick.texts, range: [one.layers.length - 0.5, -0.5], showgrid: false, zeroline: false, tickfont: { size: 10 } }),
      yaxis2: axis({ domain: bottom ? [share / 2 + 0.02, share] : [0, share], type: "log", title: { text: "total norm" }, exponentformat: "e", dtick: Math.max(1, Math.ceil((one.total_scale[1] - one.total_scale[0]) / 4)) }),
      shapes: alerts.slice(0, 60).map((a) => ({ type: "line", xref: "x", yref: "paper", x0: a.step, x1: a.step, y0: 0, y1: 1, line: { color: TONE[a.severity] || "#888", width: 1, dash: "dot" } })),
    });
    if (bottom) figure.yaxis3 = axis({ domain: [0, share / 2 - 0.01], title: { text: "loss" } });
    if (rate) figure.yaxis4 = axis({ overlaying: "y3", side: "right", showgrid: false, title: { text: "learning rate" }, exponentformat: "e", rangemode: "tozero", tickmode: "auto", nticks: 4 });
    if (at !== null) figure.shapes.push({ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: css("--accent"), width: 1.5 } });
    const first = !node.data;
    await Plotly.react(node, traces, figure, config);
    if (first) listen(node);
  }

  function nearest(one, step) {
    let low = 0, high = one.bins - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (one.first_step[middle] <= step) low = middle; else high = middle - 1;
    }
    return low;
  }
  const stepText = (one, bin) =>
    one.first_step[bin] === one.last_step[bin] ? `step ${one.first_step[bin]}` : `steps ${one.first_step[bin]} to ${one.last_step[bin]}`;

  function listen(node) {
    node.on("plotly_hover", (event) => {
      const point = event.points[0], one = current();
      if (point.data.type === "heatmap") {
        const layer = point.pointIndex[0], bin = nearest(one, point.x), cell = layer * one.bins + bin;
        const high = said(one.high[cell], one.scale), low = said(one.low[cell], one.scale);
        $("hover").textContent = `${one.layers[layer]}, ${stepText(one, bin)}: ${high === low ? high : `${low} to ${high}`}`;
      } else if (point.data.name === "alert") {
        const alert = data.runs[run].alerts.filter((a) => a.step !== null)[point.customdata];
        $("hover").textContent = `step ${alert.step}, ${alert.rule}: ${alert.title}`;
      }
    });
    node.on("plotly_click", (event) => { at = event.points[0].x; drawDepth(); drawMap(); });
    node.on("plotly_relayout", (event) => {
      let wanted = range;
      if ("xaxis.range[0]" in event) wanted = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      else if (event["xaxis.autorange"]) wanted = null;
      else return;
      if (String(wanted) !== String(range)) { range = wanted; drawMap(); }
    });
  }

  // Norms by depth at a step

  async function drawDepth() {
    const one = await open(current());
    const bin = at === null ? one.bins - 1 : nearest(one, at);
    $("at").textContent = stepText(one, bin) + (at === null ? " (the last; click the map for another)" : "");
    const x = [], high = [], low = [], odd = { x: [], y: [], text: [] };
    for (let layer = 0; layer < one.layers.length; layer++) {
      const code = one.high[layer * one.bins + bin], least = one.low[layer * one.bins + bin];
      x.push(layer);
      high.push(code >= LEAST && code <= MOST ? valueOf(code, one.scale) : null);
      low.push(least >= LEAST && least <= MOST ? valueOf(least, one.scale) : null);
      if (code === ZERO || code > MOST) {
        odd.x.push(layer); odd.y.push(10 ** (code === ZERO ? one.scale[0] : one.scale[1])); odd.text.push(label(`${one.layers[layer]}: ${said(code, one.scale)}`));
      }
    }
    const medians = one.stats.map((row) => (row[1] > 0 ? row[1] : null)), names = one.layers.map(label);
    const traces = [
      { type: "scatter", mode: "lines", name: "median of the run", x, y: medians, text: names, line: { color: css("--dim"), width: 1, dash: "dot" }, hovertemplate: "%{text}: %{y:.3g}<extra>median</extra>" },
      { type: "scatter", mode: "lines+markers", name: "norm", x, y: high, text: names, line: { color: COLOURS[0], width: 1 }, marker: { size: 5 }, hovertemplate: "%{text}: %{y:.3g}<extra></extra>" },
    ];
    if (one.low !== one.high) traces.push({ type: "scatter", mode: "lines", name: "smallest of the bin", x, y: low, text: names, line: { color: COLOURS[0], width: 0.6 }, hovertemplate: "%{text}: %{y:.3g}<extra>smallest</extra>" });
    if (odd.x.length) traces.push({ type: "scatter", mode: "markers", name: "zero or non-finite", x: odd.x, y: odd.y, text: odd.text, marker: { color: "#ff2d95", symbol: "x", size: 8 }, hovertemplate: "%{text}<extra></extra>" });
    const node = $("depth"), tick = ticks(one, Math.max(8, Math.min(48, Math.floor(node.clientWidth / 22))), 30), slant = room(tick.texts, 9);
    const right = Math.max(20, Math.ceil(slant * 0.5)), top = 8 + legendRoom(node.clientWidth - 76 - right, traces), bottom = Math.ceil(slant * 0.87) + 20;
    await Plotly.react(node, traces, layout({
      height: 300 + top + bottom, margin: { l: 76, r: right, t: top, b: bottom }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: axis({ tickvals: tick.values, ticktext: tick.texts, tickangle: 60, tickfont: { size: 9 } }),
      yaxis: axis({ type: "log", exponentformat: "e", title: { text: "norm" } }),
    }), config);
  }

  // Tables

  function spark(one, layer) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "spark");
    svg.setAttribute("viewBox", "0 0 100 20");
    svg.setAttribute("preserveAspectRatio", "none");
    const points = 80, width = Math.max(1, one.bins / points), base = layer * one.bins, logs = [];
    for (let p = 0; p < Math.min(points, one.bins); p++) {
      let code = 0;
      for (let b = Math.floor(p * width); b < Math.min(one.bins, Math.max(Math.floor((p + 1) * width), Math.floor(p * width) + 1)); b++) {
        const next = one.high[base + b];
        if (next <= MOST && next > code) code = next;
      }
      logs.push(code >= LEAST ? logOf(code, one.scale) : null);
    }
    const known = logs.filter((value) => value !== null);
    const low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
    let path = "", pen = false;
    logs.forEach((value, p) => {
      if (value === null) { pen = false; return; }
      path += `${pen ? "L" : "M"}${(p / Math.max(1, logs.length - 1) * 100).toFixed(1)} ${(19 - (value - low) / span * 18).toFixed(1)}`;
      pen = true;
    });
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", path);
    svg.append(line);
    return svg;
  }

  const HEADS = ["layer", "elements", "last", "median", "largest", "at step", "zeros", "non-finite", "absent", "over the run"];
  async function drawLayers() {
    const one = await open(current()), table = $("layers"), head = element("tr");
    HEADS.forEach((text, key) => {
      const cell = element("th");
      if (key < 9) {
        const button = element("button", text + (sort.key === key ? (sort.down ? " ↓" : " ↑") : ""));
        button.type = "button";
        button.addEventListener("click", () => { sort = { key, down: sort.key === key ? !sort.down : key > 0 }; drawLayers(); });
        cell.append(button);
      } else cell.textContent = text;
      head.append(cell);
    });
    table.tHead.replaceChildren(head);
    const needle = $("filter").value.toLowerCase();
    const order = one.layers.map((_, i) => i).filter((i) => one.layers[i].toLowerCase().includes(needle));
    const key = (i) => (sort.key === 0 ? i : sort.key === 1 ? one.numel[i] : one.stats[i][sort.key - 2] ?? -Infinity);
    order.sort((a, b) => (sort.down ? key(b) - key(a) : key(a) - key(b)));
    table.tBodies[0].replaceChildren(...order.slice(0, 2000).map((i) => {
      const row = element("tr"), stats = one.stats[i];
      row.append(element("td", one.layers[i]), element("td", one.numel[i].toLocaleString("en")));
      stats.forEach((value, column) => row.append(element("td", number(value), column >= 4 && !value ? "zero" : "")));
      const cell = element("td");
      cell.append(spark(one, i));
      row.append(cell);
      return row;
    }));
  }

  function drawAlerts() {
    const story = data.runs[run];
    $("verdict").textContent = story.verdict;
    $("alerts").replaceChildren(...story.alerts.map((alert, i) => {
      const box = element("details", null, Object.hasOwn(TONE, alert.severity) ? alert.severity : ""), summary = element("summary");
      summary.append(element("b", alert.rule), document.createTextNode(` at step ${alert.step === null ? "–" : alert.step}: ${alert.title}`));
      box.append(summary, element("p", alert.text));
      if (alert.layers.length) box.append(element("p", "Where: " + alert.layers.join(", "), "dim"));
      for (const [title, lines] of [["Changed before", alert.changed], ["Try", alert.check]]) {
        if (!lines.length) continue;
        const list = element("ul");
        list.append(...lines.map((line) => element("li", line)));
        box.append(element("p", title), list);
      }
      if (alert.step !== null && story.models.length) {
        const button = element("button", "show on the map");
        button.type = "button";
        button.addEventListener("click", () => { at = alert.step; drawMap(); drawDepth(); $("map").scrollIntoView({ block: "center" }); });
        box.append(button);
      }
      box.open = i === story.gravest;
      return box;
    }));
    if (story.alerts_left_out) $("alerts").append(element("p", `${story.alerts_left_out} more alerts are left out.`, "dim"));
  }

  function drawParams() {
    const story = data.runs[run];
    $("tags").textContent = story.tags.length ? "Tags: " + story.tags.join(", ") : "No tags.";
    $("params").tBodies[0].replaceChildren(...Object.entries(story.params).map(([name, value]) => {
      const row = element("tr");
      row.append(element("td", name), element("td", value));
      return row;
    }));
  }

  // Several runs

  async function drawComparison() {
    if (data.runs.length < 2) return;
    $("comparison").hidden = false;
    const head = element("tr");
    head.append(element("th", "run"), element("th", "what was found", "text"), ...data.differing.map((name) => element("th", name, "text")), element("th", "status", "text"));
    $("runs").tHead.replaceChildren(head);
    $("runs").tBodies[0].replaceChildren(...data.runs.map((story, i) => {
      const row = element("tr"), name = element("td"), button = element("button", story.title);
      button.type = "button";
      button.addEventListener("click", () => choose(i));
      name.append(button);
      const tone = Object.hasOwn(TONE, story.severity) || story.severity === "ok" ? story.severity : "";
      row.append(name, element("td", story.verdict, "text verdict " + tone));
      row.append(...story.differing.map((value) => element("td", value, "text")), element("td", story.status, "text"));
      return row;
    }));
    const traces = [];
    for (const [i, story] of data.runs.entries()) {
      const line = { width: 1.2, color: COLOURS[i % COLOURS.length] }, name = label(short(story.title, 40));
      const loss = await openSeries(story.loss);
      if (loss) traces.push({ type: "scatter", mode: "lines", name, legendgroup: String(i), x: loss.steps, y: loss.values, line, xaxis: "x", yaxis: "y", hovertemplate: "step %{x}: %{y:.4g}" });
      if (!story.models.length) continue;
      const one = await open(story.models[0], TOTALS), total = envelope(one.total_high, one.total_low, one.total_scale, one);
      traces.push({ type: "scatter", mode: "lines", name, legendgroup: String(i), showlegend: !loss, x: total.x, y: total.y, line, xaxis: "x", yaxis: "y2", hovertemplate: "step %{x}: %{y:.4g}" });
    }
    const positive = data.runs.every((story) => !story.loss || story.loss.values.every((value) => !(value <= 0)));
    const node = $("compare"), top = 8 + legendRoom(node.clientWidth - 96, traces);
    await Plotly.react(node, traces, layout({
      height: 420 + top, margin: { l: 76, r: 20, t: top, b: 42 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: axis({ title: { text: "step" }, anchor: "y2" }),
      yaxis: axis({ domain: [0.54, 1], title: { text: "loss" }, type: positive ? "log" : "linear" }),
      yaxis2: axis({ domain: [0, 0.46], title: { text: "total norm" }, type: "log", exponentformat: "e" }),
    }), config);
  }

  function drawTabs() {
    if (data.runs.length < 2) return;
    $("tabs").hidden = false;
    $("tabs").replaceChildren(...data.runs.map((story, i) => {
      const button = element("button", story.title);
      button.type = "button";
      button.setAttribute("aria-selected", String(i === run));
      button.addEventListener("click", () => choose(i));
      return button;
    }));
  }

  async function drawRun() {
    const story = data.runs[run];
    drawTabs();
    drawAlerts();
    drawParams();
    $("gradients").hidden = !story.models.length;
    if (!story.models.length) return;
    $("model").replaceChildren(...story.models.map((one, i) => {
      const option = element("option", one.name || "gradients");
      option.value = i;
      return option;
    }));
    $("model").value = model;
    $("model").parentElement.hidden = story.models.length < 2;
    await drawMap();
  }
  const shown = () => new Promise((done) => (document.hidden ? setTimeout(done) : requestAnimationFrame(() => setTimeout(done))));
  async function drawRest() { // what lies below the map, once the map is on the screen
    if (!data.runs[run].models.length) return;
    await shown();
    await drawDepth();
    await shown();
    await drawLayers();
  }
  async function choose(which) {
    run = which; model = 0; at = null; range = null;
    await drawRun();
    await drawRest();
  }

  function theme(name) { document.documentElement.dataset.theme = name; }
  async function redraw() {
    await drawComparison();
    if (data.runs[run].models.length) { await drawMap(); await drawDepth(); }
  }

  async function start() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    theme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", (event) => { theme(event.matches ? "dark" : "light"); redraw(); });
    $("theme").addEventListener("click", () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); redraw(); });
    $("reset").addEventListener("click", () => { range = null; at = null; drawMap(); drawDepth(); });
    for (const id of ["colour", "extreme"]) $(id).addEventListener("change", drawMap);
    $("model").addEventListener("change", () => { model = +$("model").value; at = null; range = null; drawMap(); drawDepth(); drawLayers(); });
    $("filter").addEventListener("input", drawLayers);
    let width = document.body.clientWidth, timer;
    addEventListener("resize", () => { // columns, labels and margins depend on the width
      clearTimeout(timer);
      timer = setTimeout(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; redraw(); } }, 200);
    });
    const story = data.runs[0];
    $("title").textContent = data.runs.length > 1 ? `${data.runs.length} runs` : story.title;
    const about = [story.project, story.experiment, data.runs.length > 1 ? null : story.id, data.runs.length > 1 ? null : story.status, data.runs.length > 1 ? null : story.message, new Date(story.created_ms).toISOString().slice(0, 16).replace("T", " ") + " UTC"];
    $("subtitle").textContent = about.filter(Boolean).join(" · ");
    await drawComparison();
    await drawRun();
    document.documentElement.dataset.ready = "yes"; // what fits a window is drawn
    await drawRest();
    document.documentElement.dataset.complete = "yes";
  }
  start();
})();
