// The certified ball, seen from above: images at their true distance.

import { fromText, paint } from "./pixels.js";

// Half the field's width, in radii.
const REACH = 2.1;
const RANDOM_RAYS = 5;
// Which of the adversary's stops there is room for.
const SHOWN = [1, 4, 7, 9];

export function stateOf(point, chosen) {
  if (point.label < 0) return "open";
  return point.label === chosen ? "same" : "changed";
}

export class Ball {
  constructor(field, picked) {
    this.field = field;
    this.picked = picked;
    field.addEventListener("keydown", (event) => this.walk(event));
  }

  begin({ pixels, shape, radius, scale, chosen, words, follow }) {
    Object.assign(this, { shape, scale, chosen, words, follow, worst: 0 });
    this.picked.textContent = "";
    this.field.replaceChildren();
    if (radius) this.circle("disc", radius);
    this.ring = this.circle("ring", 0);
    const middle = document.createElement("canvas");
    middle.className = "middle";
    paint(middle, pixels, shape);
    this.field.append(middle);
  }

  // One stop of the Tab key; from there, arrows go from image to image.
  walk(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const points = [...this.field.querySelectorAll(".point")];
    const next = points.indexOf(event.target) + steps[event.key];
    const node = points[(next + points.length) % points.length];
    event.target.tabIndex = -1;
    node.tabIndex = 0;
    node.focus();
  }

  circle(name, radius) {
    const node = document.createElement("div");
    node.className = name;
    this.field.append(node);
    this.resize(node, radius);
    return node;
  }

  resize(node, radius) {
    const size = `${100 * radius / (REACH * this.scale)}%`;
    node.style.width = size;
    node.style.height = size;
  }

  // Shows how far the adversary's slider is.
  mark(distance) {
    this.resize(this.ring, distance);
  }

  add(point) {
    const adversarial = point.kind === "adversarial";
    const stop = this.worst;
    if (adversarial) this.worst += 1;
    if (adversarial && !SHOWN.includes(stop)) return;
    const turn = adversarial ? 0 : (point.ray + 1) / (RANDOM_RAYS + 1);
    this.put(point, 2 * Math.PI * turn, adversarial ? stop + 1 : null);
  }

  put(point, angle, stop) {
    const node = document.createElement("button");
    const canvas = document.createElement("canvas");
    const away = 50 * point.distance / (REACH * this.scale);
    node.type = "button";
    node.className = `point ${stateOf(point, this.chosen)} ${point.kind} ${
      point.inside ? "inside" : "outside"}`;
    node.style.left = `${50 + away * Math.cos(angle)}%`;
    node.style.top = `${50 - away * Math.sin(angle)}%`;
    node.setAttribute("aria-label", this.words(point));
    node.dataset.distance = point.distance;
    node.tabIndex = this.field.querySelector(".point") ? -1 : 0;
    paint(canvas, fromText(point.pixels), this.shape);
    node.append(canvas);
    const tell = () => { this.picked.textContent = this.words(point); };
    node.addEventListener("pointerenter", tell);
    node.addEventListener("focus", tell);
    node.addEventListener("click", () => {
      tell();
      if (stop !== null) this.follow(stop);
    });
    this.field.append(node);
  }
}
