"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  // Radii are whole millionths here, so that comparing them is exact.
  const UNIT = 1e6;
  const PAGE = 60;

  const make = (tag, text, name) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  };
  const draw = (parent, tag, attributes, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) {
      node.setAttribute(key, value);
    }
    if (text !== undefined) node.textContent = text;
    return parent.appendChild(node);
  };
  const style = (i) => `s${i % 7} d${i % 4}`;
  // Never above the radius itself.
  const shown = (micro) => (Math.floor(micro / 1000) / 1000).toFixed(3);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const count = (number) => number.toLocaleString("en");

  // ---- curves ----------------------------------------------------------
  const logs = data.logs.map((log) => ({
    ...log,
    reached: Int32Array.from(
      log.radius.filter((_, i) => log.correct[i])
    ).sort(),
  }));
  // How many certified right have a radius >= micro: the first such place in
  // the sorted radii.
  const reaching = (log, micro) => {
    let low = 0;
    let high = log.reached.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (log.reached[middle] < micro) low = middle + 1;
      else high = middle;
    }
    return log.reached.length - low;
  };
  const largest = Math.max(
    ...logs.map((log) => log.reached[log.reached.length - 1] || 0), UNIT / 10);
  const steps = [0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100];
  const step = (steps.find((one) => largest / UNIT / one <= 9) || 250) * UNIT;
  const right = step * Math.ceil((largest * 1.02) / step);

  const narrow = matchMedia("(max-width: 40rem)").matches;
  const box = { left: 58, top: 14, width: narrow ? 400 : 900,
    height: narrow ? 300 : 380, below: 50 };
  const x = (micro) => box.left + (box.width * micro) / right;
  const y = (share) => box.top + box.height * (1 - share);
  const plot = draw(get("plot"), "svg", {
    viewBox: `0 0 ${box.left + box.width + 22} ${
      box.top + box.height + box.below}`,
    role: "img",
    "aria-label": `Certified accuracy against radius, ${logs.length} curves. ` +
      "The slider below reads them off.",
  });
  for (let i = 0; i <= 5; i += 1) {
    draw(plot, "line", { class: i ? "grid" : "axis", x1: box.left,
      x2: box.left + box.width, y1: y(i / 5), y2: y(i / 5) });
    draw(plot, "text", { x: box.left - 8, y: y(i / 5) + 4,
      "text-anchor": "end" }, `${20 * i} %`);
  }
  for (let micro = 0; micro <= right; micro += step) {
    draw(plot, "line", { class: micro ? "grid" : "axis", x1: x(micro),
      x2: x(micro), y1: box.top, y2: box.top + box.height });
    draw(plot, "text", { x: x(micro), y: box.top + box.height + 20,
      "text-anchor": "middle" }, String(+(micro / UNIT).toFixed(2)));
  }
  draw(plot, "text", { x: box.left + box.width / 2,
    y: box.top + box.height + 42, "text-anchor": "middle" },
  "L2 radius, pixels in [0, 1]");
  const total = (log) => log.idx.length;
  logs.forEach((log, i) => {
    // The share falls just above each radius that is reached.
    let path = `M${x(0)} ${y(log.reached.length / total(log))}`;
    log.reached.forEach((micro, k) => {
      if (micro !== log.reached[k + 1]) {
        path += `H${x(micro).toFixed(2)}V${
          y((log.reached.length - k - 1) / total(log)).toFixed(2)}`;
      }
    });
    draw(plot, "path", { class: `curve ${style(i)}`, d: path });
  });
  const guide = draw(plot, "line", { class: "guide", y1: box.top,
    y2: box.top + box.height });
  const dots = logs.map((_, i) =>
    draw(plot, "circle", { class: `dot s${i % 7}`, r: 5 }));

  const readings = logs.map((log, i) => {
    const row = get("readings").tBodies[0].insertRow();
    const name = row.appendChild(make("th"));
    name.scope = "row";
    const swatch = draw(name, "svg", { class: "swatch", viewBox: "0 0 34 10",
      "aria-hidden": "true" });
    draw(swatch, "line", { class: `key ${style(i)}`, x1: 0, x2: 34, y1: 5,
      y2: 5 });
    name.append(log.name);
    return [row.insertCell(), row.insertCell()];
  });
  // At least three decimals, and more only where there are more.
  const exact = (micro) => {
    const text = (micro / UNIT).toFixed(6);
    return text.slice(0, -3) + text.slice(-3).replace(/0+$/, "");
  };
  const read = (micro) => {
    const at = Math.min(Math.max(Math.round(micro) || 0, 0), right);
    for (const name of ["x1", "x2"]) guide.setAttribute(name, x(at));
    logs.forEach((log, i) => {
      const held = reaching(log, at);
      dots[i].setAttribute("cx", x(at));
      dots[i].setAttribute("cy", y(held / total(log)));
      readings[i][0].textContent = percent(held / total(log));
      readings[i][1].textContent = `${count(held)} of ${count(total(log))}`;
    });
    get("radius").value = Math.round((1000 * at) / right);
    get("radius").setAttribute("aria-valuetext", exact(at));
    // Down: a larger bound would not follow from this radius.
    const each = Math.floor((at / UNIT / Math.sqrt(data.dimension)) * 1e4);
    const linf = data.dimension
      ? ` (any change of all pixel values by less than ${
        (each / 1e4).toFixed(4)} stays inside it)`
      : "";
    get("reading").textContent = `At radius ${exact(at)} in L2${linf}:`;
    return at;
  };
  // Places on the screen are no more exact than thousandths.
  const readPlace = (share) => {
    const at = read(1000 * Math.round((share * right) / 1000));
    get("radius-number").value = exact(at);
  };
  get("radius-number").max = right / UNIT;
  get("radius").addEventListener("input", (event) =>
    readPlace(event.target.value / 1000));
  get("radius-number").addEventListener("input", (event) =>
    read(event.target.value * UNIT));
  const follow = (event) => {
    const place = plot.getBoundingClientRect();
    const scale = plot.viewBox.baseVal.width / place.width;
    const across = (event.clientX - place.left) * scale - box.left;
    readPlace(across / box.width);
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  readPlace(0);

  // ---- gallery ---------------------------------------------------------
  const named = (label) =>
    (data.classes && data.classes[label]) || `class ${label}`;
  const outcome = (log, i) => {
    if (log.predict[i] < 0) return "abstained";
    if (log.label[i] < 0) return "unjudged";
    return log.correct[i] ? "right" : "wrong";
  };
  const words = { right: "right", wrong: "wrong", abstained: "abstains",
    unjudged: "certified" };
  const place = new Map(data.sheet ? data.sheet.idx.map((n, i) => [n, i]) : []);
  const sheet = data.sheet ? new Image() : null;

  const picture = (log, i) => {
    const at = place.get(log.idx[i]);
    if (at === undefined) return null;
    const [height, width] = data.sheet.tile;
    const canvas = make("canvas");
    canvas.width = width;
    canvas.height = height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `example ${log.idx[i]}`);
    const across = data.sheet.columns;
    canvas.getContext("2d").drawImage(
      sheet, (at % across) * width, Math.floor(at / across) * height,
      width, height, 0, 0, width, height);
    return canvas;
  };
  const card = (log, i) => {
    const kind = outcome(log, i);
    const node = make("li", undefined, `card ${kind}`);
    const image = picture(log, i);
    if (image) node.append(image);
    const text = make("div", undefined, "text");
    text.append(make("span", words[kind], "outcome"));
    text.append(make("b", kind === "abstained"
      ? "no radius" : `radius ${shown(log.radius[i])}`));
    if (kind !== "abstained") {
      text.append(make("span", `says ${named(log.predict[i])}`, "says"));
    }
    text.append(make("span", log.label[i] < 0
      ? "label not known" : `is ${named(log.label[i])}`, "soft"));
    text.append(make("span", `no. ${log.idx[i]}`, "soft"));
    node.append(text);
    return node;
  };

  let chosen = [];
  let page = 0;
  const orders = {
    largest: (log) => (a, b) => log.radius[b] - log.radius[a] || a - b,
    smallest: (log) => (a, b) => log.radius[a] - log.radius[b] || a - b,
    number: (log) => (a, b) => log.idx[a] - log.idx[b],
  };
  const show = () => {
    const log = logs[+get("filter-log").value];
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
    page = Math.min(page, pages - 1);
    const rows = chosen.slice(page * PAGE, (page + 1) * PAGE);
    get("cards").replaceChildren(...rows.map((i) => card(log, i)));
    get("page").textContent = `Page ${page + 1} of ${pages}`;
    get("previous").disabled = page === 0;
    get("next").disabled = page === pages - 1;
  };
  const filter = () => {
    const log = logs[+get("filter-log").value];
    const kind = new FormData(get("filters")).get("outcome");
    const least = Math.round((+get("filter-radius").value || 0) * UNIT);
    const label = get("filter-label").value;
    chosen = [...log.idx.keys()].filter((i) =>
      (kind === "all" || outcome(log, i) === kind) &&
      log.radius[i] >= least &&
      (label === "" || log.label[i] === +label));
    chosen.sort(orders[get("filter-order").value](log));
    page = 0;
    get("found").textContent = `${count(chosen.length)} of ${
      count(total(log))} examples`;
    show();
  };
  const turn = (by) => () => {
    page += by;
    show();
    get("gallery").scrollIntoView();
  };
  logs.forEach((log, i) => get("filter-log").append(new Option(log.name, i)));
  get("filter-label").append(new Option("any", ""));
  [...new Set(logs.flatMap((log) => log.label))]
    .filter((label) => label >= 0)
    .sort((a, b) => a - b)
    .forEach((label) =>
      get("filter-label").append(new Option(named(label), label)));
  get("filters").addEventListener("input", filter);
  get("filters").addEventListener("submit", (event) => event.preventDefault());
  get("previous").addEventListener("click", turn(-1));
  get("next").addEventListener("click", turn(1));
  filter();
  if (sheet) {
    sheet.addEventListener("load", show);
    sheet.src = data.sheet.url;
  }
})();
