// Images as the server takes them: float32 in [0, 1], row by row, in base64.

export function toText(pixels) {
  const bytes = new Uint8Array(Float32Array.from(pixels).buffer);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

export function fromText(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// Puts an image [height, width, channels] on a canvas of its own size.
export function paint(canvas, pixels, shape) {
  const [height, width, channels] = shape;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const shown = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) {
      const value = pixels[i * channels + (channels === 1 ? 0 : c)];
      shown.data[4 * i + c] = Math.round(255 * value);
    }
    shown.data[4 * i + 3] = 255;
  }
  context.putImageData(shown, 0, 0);
}

// A change around middle grey, at full contrast: brighter is more.
export function paintChange(canvas, pixels, original, shape) {
  const change = pixels.map((value, i) => value - original[i]);
  const most = Math.max(1e-6, ...change.map(Math.abs));
  paint(canvas, change.map((value) => 0.5 + 0.5 * value / most), shape);
}
