// Opens what a visitor drops on the page: race files, saved pages, and pictures that lie beside them. Nothing leaves the
// browser. Of a saved page its race file is read and nothing else, so that its frames are made here, like any other's.

import { packed } from "./files.js";
import { raceFrames } from "./run_frames.js";
import { readRace } from "./race_reading.js";
import { printable } from "./python_text.js";

const MAX_PAGE = 24 * 2 ** 20; // bytes of a saved page, of which the drawing library is 5 MB
const MAX_PICTURE = 8 * 2 ** 20; // bytes
const LONGEST_SIDE = 512; // pixels
const PICTURE = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/;
const FRAMES = ['<script type="application/json" id="frames">', "</script>"];

// Returns the frames of one run, or of two as A and B, and a note on what their files left open. Throws an error of one line
// that names the file.
export async function framesOfFiles(files, look) {
  const isPicture = ({ type }) => type.startsWith("image/");
  const races = files.filter((file) => !isPicture(file));
  if (races.length < 1 || races.length > 2) throw new Error(`${races.length || "none"} of these files can be a race: open one, or two to compare`);
  const pictures = Object.fromEntries(await Promise.all(files.filter(isPicture).map(async (file) => [file.name, await shrunk(file)])));
  const opened = (await Promise.all(races.map((file) => read(file, look)))).flat();
  const lists = await Promise.all(opened.map(({ turns, source, picture }) => {
    const names = turns.map(({ image }) => image).filter(Boolean);
    return raceFrames(turns, source, look, { ...Object.fromEntries(names.map((name) => [name, picture])), ...pictures });
  }));
  const note = opened.map(({ turns }) => turns[0].filled).filter(Boolean).join("; ");
  if (opened.length === 1) return { frames: lists[0], note };
  if (opened.length > 2 || opened.some(({ turns: [first, ...later] }) => first.a || later.length)) {
    throw new Error("two files are compared where each holds one run: one of these holds several");
  }
  const [[pinned, [run, ...rest]], [a, b]] = [lists, opened];
  const first = { ...JSON.parse(run), against: await packed(`[${pinned}]`), a_name: a.name, b_name: b.name };
  return { frames: [JSON.stringify(first), ...rest], note };
}

// The runs of a file: one, but for a saved page of two.
async function read(file, look) {
  const name = [...file.name].filter(printable).join("").slice(-look.bounds.MAX_NAME_CHARACTERS);
  const source = `from ${name}`;
  const page = /\.html?$/i.test(file.name);
  try {
    const most = page ? MAX_PAGE : look.bounds.MAX_BYTES;
    if (file.size > most) throw new Error(`it has ${file.size.toLocaleString("en")} bytes, and at most ${most.toLocaleString("en")} are read`);
    const held = page ? await racesOfPage(await file.text(), look) : [{ text: await file.text(), picture: null }];
    return held.map(({ text, picture }) => ({ name, source, picture, turns: readRace(text, look) }));
  } catch (refusal) {
    throw new Error(`${name} is not a recorded race: ${refusal.message}`);
  }
}

async function racesOfPage(text, { bounds }) {
  const start = text.indexOf(FRAMES[0]);
  if (start < 0) throw new Error("it is no page that was saved here");
  const from = start + FRAMES[0].length;
  let list;
  try {
    list = JSON.parse(text.slice(from, text.indexOf(FRAMES[1], from))).map((frame) => JSON.parse(frame));
  } catch {
    throw new Error("what it holds is damaged");
  }
  const most = 2 * bounds.MAX_BYTES;
  const picture = PICTURE.test(list[0]?.picture) ? list[0].picture : null;
  const own = { text: await unpackedWithin(list.at(-1)?.file, most), picture };
  if (typeof list[0]?.against !== "string" || Object.hasOwn(JSON.parse(own.text), "a")) return [own];
  const pinned = JSON.parse(await unpackedWithin(list[0].against, 4 * most));
  return [{ text: await unpackedWithin(pinned.at(-1)?.file, most), picture }, own];
}

// Unpacks gzip and base64, and stops where it becomes too much.
async function unpackedWithin(text, most) {
  if (typeof text !== "string") throw new Error("it holds no race file");
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = [];
  for (let size = 0, part = await reader.read(); !part.done; part = await reader.read()) {
    size += part.value.length;
    if (size > most) throw new Error(`what it holds is larger than the ${most.toLocaleString("en")} bytes that are read`);
    parts.push(part.value);
  }
  return new Blob(parts).text();
}

async function shrunk(file) {
  if (file.size > MAX_PICTURE) throw new Error(`${file.name} has ${file.size.toLocaleString("en")} bytes, and at most ${MAX_PICTURE.toLocaleString("en")} of a picture are read`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} is no picture that this browser can read`);
  });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.88);
}
