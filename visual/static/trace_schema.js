// Reads a value by a JSON schema as pydantic writes one: refuses what does not fit, and fills in what may be missing.

const SHOWN = 60; // characters of a wrong value

// Returns a copy with the defaults; throws an error of one line.
export function readBySchema(schema, value, where) {
  return read(schema, value, where, schema.$defs ?? {});
}

function read(schema, value, where, defs) {
  if (schema.$ref) return read(defs[schema.$ref.split("/").at(-1)], value, where, defs);
  if (schema.anyOf) return readAny(schema.anyOf, value, where, defs);
  if ("const" in schema && value !== schema.const) refuse(where, value, `it must be ${JSON.stringify(schema.const)}`);
  if (schema.enum && !schema.enum.includes(value)) refuse(where, value, `it must be one of ${schema.enum.join(", ")}`);
  return READERS[schema.type](schema, value, where, defs);
}

function readAny(schemas, value, where, defs) {
  if (value === null && schemas.some(({ type }) => type === "null")) return null;
  return read(schemas.find(({ type }) => type !== "null"), value, where, defs);
}

const READERS = { object: readObject, array: readArray, string: readString, integer: readNumber, number: readNumber };

function readObject({ properties, required = [], additionalProperties: others }, value, where, defs) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) refuse(where, value, "it must be an object");
  const whole = {};
  for (const [name, own] of Object.entries(value)) {
    const schema = properties && Object.hasOwn(properties, name) ? properties[name] : others;
    if (!schema) refuse(inside(where, name), own, "no such field is known; the file may be of a newer specllava that knows it");
    Object.defineProperty(whole, name, { value: read(schema, own, inside(where, name), defs), enumerable: true });
  }
  for (const name of required) if (!Object.hasOwn(value, name)) throw new Error(`${inside(where, name)}: it is missing`);
  for (const [name, { default: usual }] of Object.entries(properties ?? {})) {
    if (usual !== undefined && !Object.hasOwn(value, name)) whole[name] = usual;
  }
  return whole;
}

function readArray({ items, minItems = 0, maxItems = Infinity }, value, where, defs) {
  if (!Array.isArray(value)) refuse(where, value, "it must be a list");
  if (value.length < minItems || value.length > maxItems) refuse(where, value, `it must have ${minItems} to ${maxItems} entries`);
  return value.map((item, place) => read(items, item, inside(where, place), defs));
}

function readString({ maxLength = Infinity }, value, where) {
  if (typeof value !== "string") refuse(where, value, "it must be a text");
  if (value.length > maxLength) refuse(where, value, `it must have at most ${maxLength} characters`);
  return value;
}

function readNumber({ type, minimum = -Infinity, maximum = Infinity, exclusiveMaximum = Infinity }, value, where) {
  const fits = type === "integer" ? Number.isSafeInteger(value) : Number.isFinite(value);
  if (!fits) refuse(where, value, `it must be ${type === "integer" ? "a whole number" : "a number"}`);
  if (value < minimum || value > maximum || value >= exclusiveMaximum) refuse(where, value, `it must be from ${minimum} to ${Math.min(maximum, exclusiveMaximum)}`);
  return value;
}

const inside = (where, name) => [where, String(name).slice(0, SHOWN)].filter(Boolean).join(".");

function refuse(where, value, why) {
  const given = value !== null && typeof value === "object" ? "" : ` = ${JSON.stringify(value).slice(0, SHOWN)}`;
  throw new Error(`${where || "the file"}${given}: ${why}`);
}
