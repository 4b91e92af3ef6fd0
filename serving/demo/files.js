// Reads image files into the pixels that the model takes.

import { centred, cropped } from "./fitting.js";
import { Trouble } from "./stream.js";

const MOST_MEGABYTES = 20;
const LONGEST_SIDE = 1024;
// As ITU-R 601 and Pillow weigh red, green and blue.
const GREY = [0.299, 0.587, 0.114];

async function decoded(file) {
  const size = file.size / 1e6;
  if (size > MOST_MEGABYTES) {
    throw new Trouble(`${file.name} is too large: ${size.toFixed(0)} MB. `
      + `Images may have ${MOST_MEGABYTES} MB.`);
  }
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Trouble(`${file.name} is not an image that this browser can `
      + "read.");
  }
}

function drawn(bitmap) {
  const longest = Math.max(bitmap.width, bitmap.height);
  const scale = Math.min(1, LONGEST_SIDE / longest);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const context = canvas.getContext("2d");
  // What is transparent lies on paper.
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

function plane({ data, width, height }, weights) {
  const values = new Float32Array(width * height);
  for (let i = 0; i < values.length; i += 1) {
    values[i] = weights.reduce((sum, w, c) => sum + w * data[4 * i + c], 0)
      / 255;
  }
  return { values, width, height };
}

function rimOf({ values, width, height }) {
  let [sum, count] = [0, 0];
  for (let j = 0; j < height; j += 1) {
    const step = j === 0 || j === height - 1 ? 1 : Math.max(1, width - 1);
    for (let i = 0; i < width; i += step) {
      sum += values[j * width + i];
      count += 1;
    }
  }
  return sum / count;
}

function coloured(picture, wide, tall) {
  const planes = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(
    (weights) => cropped(plane(picture, weights), wide, tall),
  );
  return Float32Array.from(
    { length: 3 * wide * tall },
    (_, i) => planes[i % 3][Math.floor(i / 3)],
  );
}

function grey(picture, wide, tall, digits) {
  const source = plane(picture, GREY);
  if (picture.width === wide && picture.height === tall) {
    return [source.values, "Taken pixel by pixel."];
  }
  const inverted = rimOf(source) > 0.5;
  if (inverted) source.values.forEach((v, i) => { source.values[i] = 1 - v; });
  const fit = digits ? centred : cropped;
  const words = [digits ? "Scaled and centred as the training digits are." :
    "Scaled to the model's size."];
  if (inverted) words.push("Inverted: the model knows white on black.");
  return [fit(source, wide, tall), words.join(" ")];
}

// Returns the pixels, and what was done to the file in words.
export async function read(file, { shape, digits }) {
  const picture = drawn(await decoded(file));
  const [tall, wide, channels] = shape;
  if (channels === 1) return grey(picture, wide, tall, digits);
  return [coloured(picture, wide, tall), "Scaled to the model's size."];
}
