// An animated PNG from still ones: their image data, spliced into one file with a control chunk for each frame.
// Third edition of the PNG specification, https://www.w3.org/TR/png-3/#apng-chunks

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];
const HEADER = 13; // bytes of IHDR
const POLYNOMIAL = 0xedb88320;

// `stills` are the bytes of PNG files of one size and kind, `milliseconds` how long each is shown; it loops for ever.
export function animated(stills, milliseconds) {
  const read = stills.map(chunksOf);
  const [header] = read.map((chunks) => chunks.find(({ type }) => type === "IHDR").data);
  let sequence = 0;
  const parts = [Uint8Array.from(SIGNATURE), chunk("IHDR", header), chunk("acTL", numbers([stills.length, 4], [0, 4]))];
  read.forEach((chunks, place) => {
    const own = chunks.find(({ type }) => type === "IHDR").data;
    if (own.length !== HEADER || own.some((byte, index) => byte !== header[index])) throw new Error(`frame ${place} is of another size or kind than the first`);
    const [width, height] = [0, 4].map((offset) => new DataView(own.buffer, own.byteOffset).getUint32(offset));
    // sequence number, size, position, delay as a fraction, dispose: keep the frame, blend: replace what was there
    parts.push(chunk("fcTL", numbers([sequence++, 4], [width, 4], [height, 4], [0, 4], [0, 4], [milliseconds[place], 2], [1000, 2], [0, 1], [0, 1])));
    for (const { type, data } of chunks) {
      if (type !== "IDAT") continue;
      parts.push(place === 0 ? chunk("IDAT", data) : chunk("fdAT", joined(numbers([sequence++, 4]), data)));
    }
  });
  return new Blob([...parts, chunk("IEND", new Uint8Array())], { type: "image/png" });
}

function chunksOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const chunks = [];
  for (let at = SIGNATURE.length; at < bytes.length; ) {
    const length = view.getUint32(at);
    chunks.push({ type: String.fromCharCode(...bytes.subarray(at + 4, at + 8)), data: bytes.subarray(at + 8, at + 8 + length) });
    at += 12 + length;
  }
  return chunks;
}

function chunk(type, data) {
  const named = joined(Uint8Array.from(type, (letter) => letter.charCodeAt(0)), data);
  return joined(numbers([data.length, 4]), named, numbers([crc32(named), 4]));
}

// Unsigned integers of 1, 2 or 4 bytes, the highest byte first.
function numbers(...pairs) {
  return Uint8Array.from(pairs.flatMap(([value, size]) => Array.from({ length: size }, (_, byte) => (value >>> (8 * (size - 1 - byte))) & 255)));
}

function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole;
}

const remainders = Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? POLYNOMIAL ^ (value >>> 1) : value >>> 1;
  return value;
});

export function crc32(bytes) {
  return ~bytes.reduce((value, byte) => remainders[(value ^ byte) & 255] ^ (value >>> 8), -1) >>> 0;
}
