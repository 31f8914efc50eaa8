// One group as cards side by side: numbers of each trajectory, and its response coloured by who wrote it.
"use strict";

// Shows `group`; members whose place is not in `hits` are dimmed; `wanted` is marked in the texts.
function showGroup(group, hits, wanted) {
  const place = byId("group");
  if (!group) {
    place.replaceChildren(element("p", { class: "soft" }, "No trajectory here: choose another filter or trial."));
    return;
  }
  const hottest = Math.max(...group.members.flatMap((member) => member.parts.map((part) => part.entropy || 0)), 1e-9);
  const peak = Math.max(...group.members.flatMap((member) => member.parts.flatMap((part) => part.entropies || [])), 1e-9);
  const cards = group.members.map((member, index) => card(member, index, hits.has(index), wanted, { hottest, peak }));
  place.replaceChildren(
    element("div", { class: "about" },
      element("div", {}, element("b", {}, "Question "), ...marked(group.question || group.id, wanted)),
      element("div", { class: "soft" }, group.gold ? `Answer: ${group.gold} · ` : "", ...marked(group.id, wanted))),
    element("div", { class: "members" }, ...cards));
}

function card(member, index, hit, wanted, scales) {
  const chips = [
    chip(member.correct ? "correct" : "wrong", member.correct ? "good" : "bad"),
    chip(member.hybrid ? "hybrid" : "on-policy"),
    chip(`end: ${member.end || "?"}`),
  ];
  return element("article", { tabindex: -1, class: hit ? "" : "missed", "aria-label": `trajectory ${index + 1}` },
    element("div", { class: "title" }, element("h3", {}, `Trajectory ${index + 1}`), element("span", {}, ...chips.flatMap((c) => [c, " "]))),
    numbers(member),
    member.error ? element("p", { class: "bad" }, member.error) : null,
    ...member.parts.map((part) => shownPart(part, wanted, scales)));
}

function chip(text, tone) {
  return element("span", { class: `chip ${tone || ""}` }, text);
}

function numbers(member) {
  const signed = (value) => (value > 0 ? `+${shownNumber(value)}` : shownNumber(value));
  const facts = [
    ["reward", shownNumber(member.reward)],
    ["advantage", signed(member.advantage)],
    ["tokens", shownNumber(member.tokens)],
    ["retrieval reward", signed(member.z)],
  ];
  if (member.share) facts.push(["retrieved share", shownNumber(member.share)]);
  for (const [name, value] of Object.entries(member.terms)) if (value) facts.push([name, signed(value)]);
  return element("dl", { class: "numbers" },
    ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function shownPart(part, wanted, scales) {
  const text = element("pre", { tabindex: -1 }, ...marked(part.text.replace(/^\n+|\n+$/g, ""), wanted));
  if (part.by === "policy") text.style.setProperty("--heat", (0.04 + 0.4 * ((part.entropy || 0) / scales.hottest)).toFixed(3));
  return element("div", { class: `part ${part.by}` },
    element("header", {}, ...partFacts(part).map((fact) => element("span", {}, fact))), text,
    part.entropies && part.entropies.length > 1 ? strip(part, scales.peak) : null);
}

function partFacts(part) {
  if (part.by === "retrieved") {
    return ["retrieved", part.source, `similarity ${shownNumber(part.similarity)}`, part.noisy ? "noise" : ""].filter(Boolean);
  }
  if (part.by === "tool") return ["tool"];
  if (part.by === "given") return ["begins behind an expert's steps"];
  const call = part.tool ? `calls ${part.tool}${part.tool_error ? `: ${part.tool_error}` : ""}, ${shownNumber(part.tool_seconds)} s` : "";
  return ["policy", `${part.tokens} tokens`, `entropy ${shownNumber(part.entropy)}`, call].filter(Boolean);
}

// Entropies of a step's tokens, as bars of one scale for the whole group.
function strip(part, peak) {
  const count = part.entropies.length;
  const bars = part.entropies.map((value, index) =>
    drawing("rect", { x: index, width: 0.9, y: 16 - (15 * value) / peak, height: 1 + (15 * value) / peak }));
  const label = `entropy of ${part.tokens} tokens, highest ${shownNumber(Math.max(...part.entropies))}`;
  return drawing("svg", { class: "strip", viewBox: `0 0 ${count} 17`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    drawing("title", {}, label), ...bars);
}

// `text` as nodes, with every occurrence of `wanted` (any case) in <mark>.
function marked(text, wanted) {
  if (!wanted) return [text];
  const nodes = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    nodes.push(text.slice(from, at), element("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...nodes, text.slice(from)];
}
