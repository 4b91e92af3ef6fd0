// The drawing area: a soft white brush on black.

import { centred, cropped } from "./fitting.js";
import { paint } from "./pixels.js";

const BRUSH = 0.082;

export class Pad {
  constructor(canvas, about, changed) {
    this.canvas = canvas;
    this.about = about;
    this.changed = changed;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => { this.last = null; });
    }
  }

  clear() {
    this.picture = null;
    this.last = null;
    this.empty = true;
    const { width, height } = this.canvas;
    this.context.globalAlpha = 1;
    this.context.shadowBlur = 0;
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, width, height);
    Object.assign(this.context, {
      fillStyle: "#fff",
      strokeStyle: "#fff",
      lineCap: "round",
      lineJoin: "round",
      lineWidth: BRUSH * width,
      shadowColor: "#fff",
      shadowBlur: BRUSH * width / 4,
    });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [
      (event.clientX - box.left) / box.width,
      (event.clientY - box.top) / box.height,
    ];
  }

  begin(event) {
    if (event.button) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    // A picture is not drawn upon: a line begins a drawing.
    if (this.picture) this.clear();
    this.last = this.place(event);
    this.dot(this.last);
    this.changed();
  }

  move(event) {
    if (!this.last) return;
    const events = event.getCoalescedEvents?.() ?? [];
    const points = (events.length ? events : [event])
      .map((one) => this.place(one));
    this.line([this.last, ...points]);
    this.last = points.at(-1);
    this.changed();
  }

  // Not every browser draws a line without length.
  dot([x, y]) {
    const side = this.canvas.width;
    this.empty = false;
    this.context.beginPath();
    this.context.arc(x * side, y * side, BRUSH * side / 2, 0, 2 * Math.PI);
    this.context.fill();
  }

  line(points) {
    const side = this.canvas.width;
    this.empty = false;
    this.context.beginPath();
    points.forEach(([x, y]) => this.context.lineTo(x * side, y * side));
    this.context.stroke();
  }

  strokes(lines) {
    this.clear();
    lines.forEach((points) => this.line(points));
    this.changed();
  }

  // Shows an image that is already as the model takes it.
  show(pixels) {
    this.clear();
    this.empty = false;
    this.picture = pixels;
    const small = document.createElement("canvas");
    paint(small, pixels, this.about.shape);
    this.context.shadowBlur = 0;
    this.context.imageSmoothingEnabled = false;
    const { width, height } = this.canvas;
    this.context.drawImage(small, 0, 0, width, height);
    this.changed();
  }

  // The image as the model takes it.
  pixels() {
    if (this.picture) return this.picture;
    const { width, height } = this.canvas;
    const { data } = this.context.getImageData(0, 0, width, height);
    const values = Float32Array.from(
      { length: width * height },
      (_, i) => data[4 * i] / 255,
    );
    const [tall, wide, channels] = this.about.shape;
    const fit = this.about.digits ? centred : cropped;
    const grey = fit({ values, width, height }, wide, tall);
    return Float32Array.from(
      { length: grey.length * channels },
      (_, i) => grey[Math.floor(i / channels)],
    );
  }
}
