// The settings of a run in one line, which names only what the run goes by: as visual/player/summary.py writes it.

import { general } from "./python_text.js";

export function settingsSummary({ config, rule, drafter, setting }, look) {
  const [who, how] = [drafter || config.drafter, rule || config.rule];
  const read = optionsRead(who, how, config, look);
  const kind = setting.draft_reads === null ? null : "draft that reads the target's states";
  const parts = [kind && who === "model" ? kind : (look.drafters[who]?.called ?? who)];
  if (read.has("rule") || rule) parts.push(`${how} rule`);
  for (const [name, phrase] of Object.entries(look.phrases)) {
    const value = config[name];
    if (!read.has(name) || value === look.leavesNothingOut[name]) continue;
    parts.push(name === "temperature" && value === 0 ? "greedy" : phrase.replace("{}", written(value)));
  }
  if (setting.generation_config) parts.push(`generation_config.json: ${setting.generation_config}`);
  return parts.join(" · ");
}

// Names of the options that decoding with these reads.
function optionsRead(drafter, rule, { temperature, children }, { drafters, rules }) {
  const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : null);
  const read = new Set(["drafter", "max_new_tokens", "temperature", ...(own(drafters, drafter)?.options ?? [])]);
  const known = read.has("rule") ? own(rules, rule) : null;
  for (const name of known?.options ?? []) read.add(name);
  if (temperature > 0) for (const name of ["top_p", "top_k", "seed"]) read.add(name);
  if (temperature <= 0 || !known?.drawable) read.delete("children"); // they can only be the best
  if (read.has("children") && children === "drawn") read.add("verifier");
  return read;
}

function written(value) {
  if (Array.isArray(value)) return value.map(written).join(", ");
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return Number(general(value)) === value ? general(value) : String(value);
}
