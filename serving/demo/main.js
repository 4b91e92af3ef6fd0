// Puts the page together: an image, its vote, its ball, its adversary.

import { Attack } from "./attack.js";
import { Ball } from "./ball.js";
import { Bars, number } from "./bars.js";
import { read } from "./files.js";
import { Pad } from "./pad.js";
import { fromText, paint, toText } from "./pixels.js";
import { ask, Trouble } from "./stream.js";
import { DIGITS } from "./strokes.js";

const HINT = "Or choose an example, or drop an image file anywhere on this "
  + "page.";

const get = (id) => document.getElementById(id);

const response = await fetch("about.json");
const about = await response.json();
const [height, width, channels] = about.shape;
about.digits = about.names.join("") === "0123456789"
  && height === 28 && width === 28 && channels === 1;

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let running = null;
let shownAt = -Infinity;
const pad = new Pad(get("pad"), about, changed);
const bars = new Bars(get("bars"), about.names);
const ball = new Ball(get("ball"), get("picked"));
const attack = new Attack({
  slider: get("distance"),
  far: get("far"),
  strip: get("strip"),
  end: get("strip-end"),
  radius: get("strip-radius"),
  perturbed: get("perturbed"),
  change: get("change"),
  few: get("few"),
  verdict: get("verdict"),
}, about, (distance) => ball.mark(distance));

function stop() {
  running?.abort();
  running = null;
  document.body.removeAttribute("data-busy");
}

function complain(error) {
  if (!(error instanceof Trouble)) throw error;
  get("trouble").textContent = error.message;
}

// Another image: what was found or said about the last one goes.
function changed() {
  get("hint").textContent = HINT;
  forget();
}

function forget() {
  stop();
  shownAt = -Infinity;
  paint(get("seen"), pad.pixels(), about.shape);
  bars.show(about.names.map(() => 0), 1, -1);
  for (const id of ["progress", "result", "trouble"]) get(id).textContent = "";
  for (const id of ["chosen", "lower", "radius"]) get(id).textContent = "–";
  for (const id of ["ball-section", "attack-section", "details"]) {
    get(id).hidden = true;
  }
  get("noisy-view").hidden = true;
  get("result").className = "result";
}

function tell(line, n) {
  bars.show(line.counts, n, line.chosen);
  get("chosen").textContent = about.names[line.chosen];
  get("lower").textContent = line.p_lower_text;
  get("radius").textContent = line.label < 0 ? "none" : line.radius_text;
}

function conclude(line) {
  const certified = line.label >= 0;
  const headline = document.createElement("strong");
  const sentence = document.createElement("span");
  headline.textContent = certified
    ? `${about.names[line.label]}, certified within ${line.radius_text}`
    : "No answer";
  sentence.textContent = `${line.sentence[0].toUpperCase()}`
    + `${line.sentence.slice(1)}.`;
  get("result").replaceChildren(headline, sentence);
  get("result").classList.add(certified ? "certified" : "abstained");
  get("progress").textContent = `${number(line.drawn)} draws, after `
    + `${number(line.n0)} others that chose the class.`;
  get("statement").textContent = line.statement;
  get("seed").textContent = line.seed.join(", ");
  get("details").hidden = false;
}

// A few of the copies, no faster than an eye may want to follow.
function showNoise(pixels) {
  const now = performance.now();
  if (now - shownAt < (calm.matches ? Infinity : 250)) return;
  shownAt = now;
  paint(get("noisy"), fromText(pixels), about.shape);
  get("noisy-view").hidden = false;
}

async function vote(pixels, signal) {
  const question = { pixels, n: Number(get("draws").value) };
  let whole = null;
  for await (const line of ask("certify", question, "certificate", signal)) {
    if (line.stage === "begin") whole = line;
    if (line.stage === "selection") {
      get("progress").textContent = `${line.drawn} of ${whole.n0} draws that `
        + "choose the class";
    }
    if (line.stage === "estimation") {
      tell(line, whole.n);
      showNoise(line.noisy);
      get("progress").textContent = `${number(line.drawn)} of `
        + `${number(whole.n)} draws. No promise before the last.`;
    }
    if (line.stage === "certificate") {
      tell(line, whole.n);
      conclude({ ...line, n0: whole.n0 });
      return line;
    }
  }
  return null;
}

function pointWords(found) {
  return (point) => {
    const kind = point.kind === "random" ? "A random change"
      : "The worst change found";
    const side = point.inside ? "inside" : "outside";
    const votes = (label) => `${point.counts[label]} of 500 votes for `
      + about.names[label];
    return `${kind}, ${point.distance.toFixed(3)} away, ${side}: ${
      point.label < 0 ? `too close to call, ${votes(found.chosen)}`
        : votes(point.label)}.`;
  };
}

function openBall(image, found, { scale, reach, stops }) {
  get("ball-words").textContent = found.radius
    ? `Every image inside the circle of radius ${found.radius_text} is `
      + `answered ${about.names[found.chosen]}, with ${about.confidence}. `
      + "Distances from the middle are true. Five rays are random changes; "
      + "the one to the right is an adversary's."
    : "There is no certified ball. These images are up to "
      + `${reach.toFixed(2)} away; of none anything is promised.`;
  get("ball-section").hidden = false;
  get("attack-section").hidden = false;
  ball.begin({
    pixels: image,
    shape: about.shape,
    radius: found.radius,
    scale,
    chosen: found.chosen,
    words: pointWords(found),
    follow: (at) => attack.follow(at),
  });
  attack.begin({ pixels: image, certificate: found, reach, stops });
}

async function explore(image, pixels, found, signal) {
  const question = { pixels, label: found.chosen, radius: found.radius };
  let few = 0;
  for await (const line of ask("explore", question, "end", signal)) {
    if (line.stage === "begin") {
      few = line.n;
      openBall(image, found, line);
    }
    if (line.stage === "point") {
      ball.add(line);
      if (line.kind === "adversarial") attack.add(line, few);
    }
  }
}

async function certify() {
  if (pad.empty) {
    get("trouble").textContent = "Draw something first, or choose an example.";
    return;
  }
  forget();
  running = new AbortController();
  const { signal } = running;
  document.body.setAttribute("data-busy", "");
  const image = pad.pixels();
  const pixels = toText(image);
  try {
    const found = await vote(pixels, signal);
    await explore(image, pixels, found, signal);
  } catch (error) {
    if (!signal.aborted) complain(error);
  } finally {
    if (!signal.aborted) stop();
  }
}

async function open(file) {
  if (!file) return;
  // At once: beside what is said of a bad file, no older result may stand.
  forget();
  try {
    const [pixels, words] = await read(file, about);
    pad.show(pixels);
    get("hint").textContent = words;
    await certify();
  } catch (error) {
    complain(error);
  }
}

function example(name, choose) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const canvas = document.createElement("canvas");
  button.type = "button";
  button.setAttribute("aria-label", `Example: ${name}`);
  button.title = name;
  choose();
  paint(canvas, pad.pixels(), about.shape);
  button.append(canvas);
  button.addEventListener("click", () => {
    choose();
    certify();
  });
  item.append(button);
  get("examples").append(item);
}

function introduce() {
  const noun = about.digits ? "a digit" : "something";
  get("invitation").textContent = channels === 1
    ? `Draw ${noun}.` : "Drop an image.";
  get("model").textContent = `${about.title}, noise of sigma ${about.sigma}, `
    + about.confidence;
  get("size").textContent = `${width}\u00a0×\u00a0${height}`;
  if (about.digits) {
    DIGITS.forEach((lines, digit) => {
      example(String(digit), () => pad.strokes(lines));
    });
  }
  for (const { name, pixels } of about.examples) {
    example(name, () => pad.show(fromText(pixels)));
  }
  pad.clear();
  changed();
}

introduce();
get("certify").addEventListener("click", certify);
get("clear").addEventListener("click", () => {
  pad.clear();
  changed();
});
get("file").addEventListener("change", (event) => {
  open(event.target.files[0]);
  // So that the same file can be chosen again.
  event.target.value = "";
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  open(event.dataTransfer.files[0]);
});
window.addEventListener("pagehide", stop);
document.body.setAttribute("data-ready", "");
