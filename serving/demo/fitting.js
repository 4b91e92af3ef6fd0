// From a drawing of any size to the few pixels that a model takes.

const INK = 0.1;
// MNIST's digits fill a box of 20 pixels in an image of 28.
const BOX = 20 / 28;
// A dot is not blown up to a whole digit.
const SMALLEST = 0.25;

// How much each pixel of `count` covers of a source pixel, along one side.
function overlaps(count, start, step, size) {
  return Array.from({ length: count }, (_, i) => {
    const [low, high] = [start + i * step, start + (i + 1) * step];
    const found = [];
    const last = Math.min(size, Math.ceil(high));
    for (let at = Math.max(0, Math.floor(low)); at < last; at += 1) {
      const part = Math.min(high, at + 1) - Math.max(low, at);
      found.push([at, part / step]);
    }
    return found;
  });
}

// Averages over the area of each new pixel; what lies outside is black.
export function resample(source, left, top, stepX, stepY, width, height) {
  const columns = overlaps(width, left, stepX, source.width);
  const rows = overlaps(height, top, stepY, source.height);
  const found = new Float32Array(width * height);
  rows.forEach((row, j) => columns.forEach((column, i) => {
    let sum = 0;
    for (const [y, tall] of row) {
      for (const [x, wide] of column) {
        sum += tall * wide * source.values[y * source.width + x];
      }
    }
    found[j * width + i] = Math.min(1, sum);
  }));
  return found;
}

function extent({ values, width, height }) {
  let [left, right, top, bottom] = [width, -1, height, -1];
  let [sum, x, y] = [0, 0, 0];
  for (let j = 0; j < height; j += 1) {
    for (let i = 0; i < width; i += 1) {
      const value = values[j * width + i];
      sum += value;
      x += value * (i + 0.5);
      y += value * (j + 0.5);
      if (value > INK) {
        left = Math.min(left, i);
        right = Math.max(right, i);
        top = Math.min(top, j);
        bottom = Math.max(bottom, j);
      }
    }
  }
  const longest = Math.max(right - left, bottom - top) + 1;
  return { longest, x: x / sum, y: y / sum, blank: right < 0 };
}

// As MNIST's digits are: the longer side of a box, the mass in the middle.
export function centred(source, width, height) {
  const found = extent(source);
  if (found.blank) return new Float32Array(width * height);
  const least = SMALLEST * Math.max(source.width, source.height);
  const step = Math.max(found.longest, least) / (BOX * width);
  return resample(
    source,
    found.x - step * width / 2,
    found.y - step * height / 2,
    step,
    step,
    width,
    height,
  );
}

// The largest part in the middle that has the model's proportions.
export function cropped(source, width, height) {
  const step = Math.min(source.width / width, source.height / height);
  return resample(
    source,
    (source.width - step * width) / 2,
    (source.height - step * height) / 2,
    step,
    step,
    width,
    height,
  );
}
