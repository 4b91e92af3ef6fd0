// The adversary's slider: the worst change that was found at each length.

import { Bars, number } from "./bars.js";
import { fromText, paint, paintChange } from "./pixels.js";

const [WIDE, TALL] = [500, 90];
const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  return node;
}

export class Attack {
  constructor(parts, about, moved) {
    Object.assign(this, { parts, about, moved });
    this.bars = new Bars(parts.few, about.names);
    parts.slider.addEventListener("input", () => this.show());
  }

  begin({ pixels, certificate, reach, stops }) {
    Object.assign(this, { pixels, certificate, reach });
    this.stops = [{
      distance: 0,
      image: pixels,
      counts: certificate.counts,
      n: certificate.drawn,
      label: certificate.label,
    }];
    this.parts.slider.max = stops;
    this.parts.slider.value = 0;
    this.parts.end.textContent = reach.toFixed(2);
    this.parts.radius.textContent = certificate.radius
      ? `radius ${certificate.radius_text}` : "";
    this.show();
  }

  add(point, n) {
    this.stops.push({ ...point, n, image: fromText(point.pixels) });
    this.show();
  }

  follow(stop) {
    this.parts.slider.value = stop;
    this.show();
  }

  show() {
    const at = Number(this.parts.slider.value);
    const stop = this.stops[at];
    this.parts.verdict.className = "verdict";
    if (!stop) {
      this.parts.verdict.textContent = "The adversary is still looking.";
      return;
    }
    const { shape: size } = this.about;
    const far = stop.distance.toFixed(3);
    this.parts.far.textContent = far;
    this.parts.slider.setAttribute("aria-valuetext", `${far} in L2`);
    paint(this.parts.perturbed, stop.image, size);
    paintChange(this.parts.change, stop.image, this.pixels, size);
    this.bars.show(stop.counts, stop.n, stop.label);
    this.draw(stop);
    this.moved(stop.distance);
    const [mood, words] = this.verdict(stop, at);
    this.parts.verdict.classList.add(mood);
    this.parts.verdict.textContent = words;
  }

  // What may be said of a stop, and no more.
  verdict(stop, at) {
    const { chosen, radius } = this.certificate;
    const votes = (label) => `${number(stop.counts[label])} of `
      + `${number(stop.n)} votes for ${this.about.names[label]}`;
    if (at === 0) return ["still", `The image itself: ${votes(chosen)}.`];
    const open = `${votes(chosen)}: too close to call with so few draws.`;
    const answer = stop.label < 0 ? open : `${votes(stop.label)}.`;
    if (!stop.inside) {
      const promise = radius
        ? "Outside the certified radius: no promise."
        : "Nothing was certified: no promise.";
      if (stop.label < 0) return ["open", `${promise} ${answer}`];
      return stop.label === chosen
        ? ["still", `${promise} It did not change all the same: ${answer}`]
        : ["changed", `${promise} And it changed: ${answer}`];
    }
    const promise = "Inside the certified radius: cannot change";
    if (stop.label < 0) return ["open", `${promise}. ${answer}`];
    return stop.label === chosen
      ? ["same", `${promise}, and did not: ${answer}`]
      : ["changed", `${promise}, yet ${answer} Either this certificate is one `
        + `of the ${100 * this.about.alpha}% that may be false, or these few `
        + "draws mislead."];
  }

  // The share of votes for the certified class along the slider.
  draw(stop) {
    const { chosen, radius } = this.certificate;
    const across = (distance) => WIDE * Math.min(1, distance / this.reach);
    const share = (one) => one.counts[chosen] / one.n;
    const line = this.stops.map((one) => `${across(one.distance)},`
      + `${TALL - 4 - (TALL - 8) * share(one)}`).join(" ");
    const upright = { y1: 0, y2: TALL };
    const at = (x) => ({ x1: across(x), x2: across(x), ...upright });
    this.parts.strip.replaceChildren(
      shape("rect", { class: "safe", width: across(radius), height: TALL }),
      shape("line", { class: "edge", ...at(radius) }),
      shape("line", { class: "half", x1: 0, x2: WIDE, y1: TALL / 2,
        y2: TALL / 2 }),
      shape("polyline", { class: "share", points: line }),
      shape("line", { class: "now", ...at(stop.distance) }),
    );
    this.parts.strip.setAttribute("aria-label", "Share of votes for "
      + `${this.about.names[chosen]} by distance: ${this.stops.map((one) =>
        `${(100 * share(one)).toFixed(0)} % at ${one.distance.toFixed(2)}`,
      ).join(", ")}`);
    this.parts.radius.style.left = `${100 * across(radius) / WIDE}%`;
  }
}
