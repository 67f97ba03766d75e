// Opens saved pages: runs that the player's menu or `trace export` wrote as HTML. Their frames are read as data and checked;
// markup and scripts of such a page are never used. Nothing leaves the browser.

import { unpacked } from "./files.js";
import { checkFrames } from "./frame_shapes.js";
import { newId } from "./site_frames.js";

const MAX_BYTES = 24 * 2 ** 20; // of a page, of which the drawing library is 5 MB
const MAX_UNPACKED = 64 * 2 ** 20; // bytes of everything that is packed in a page
const MAX_NAME = 200; // characters
const MARKS = ['<script type="application/json" id="frames">', "</script>"]; // around the frames, see standalone.html
const MAKE = "python -m specllava trace export race.json --html race.html";

// Returns the frames of a page. Throws an `Error` of one line that names the file.
export async function framesOfFile(file) {
  const name = file.name.replace(/\p{C}/gu, "").slice(-MAX_NAME); // without control characters
  try {
    if (file.size > MAX_BYTES) throw new Error(`it has ${file.size.toLocaleString("en")} bytes, and at most ${MAX_BYTES.toLocaleString("en")} are read`);
    const list = framesIn(await file.text());
    let size = 0;
    await checkFrames(list, async (text) => {
      const whole = await unpacked(text, MAX_UNPACKED);
      size += whole.length;
      if (size > MAX_UNPACKED) throw new Error(`it unpacks to ${size.toLocaleString("en")} bytes and more, and at most ${MAX_UNPACKED.toLocaleString("en")} are read`);
      return whole;
    });
    const shown = { ...JSON.parse(list[0]), id: newId(), live: false, source: `from ${name}`, example: null };
    return [JSON.stringify(shown), ...list.slice(1)];
  } catch (refusal) {
    const why = refusal.constructor === Error ? refusal.message : "what it holds is damaged"; // no JSON, no gzip, no base64
    throw new Error(`${name}: ${why}`);
  }
}

function framesIn(text) {
  const start = text.indexOf(MARKS[0]);
  if (start < 0) throw new Error(/^\s*[{[]/.test(text) ? `a race file is no page; this makes a page of one, which opens here: ${MAKE}` : "it is no saved page");
  const from = start + MARKS[0].length;
  return JSON.parse(text.slice(from, text.indexOf(MARKS[1], from)));
}
