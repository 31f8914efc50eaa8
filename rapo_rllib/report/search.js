// Which group the reader shows: choice of trial, iteration and question, filters, search, keys.
"use strict";

(function search() {
  const FILTERS = ["iteration", "outcome", "policy", "retrieval", "end"];
  let groups = [];  // of the chosen trial
  let found = [];  // [{group, hits}] that pass the filters; hits: places of members
  let shown = 0;  // index into found
  let focused = -1;  // member whose card has the focus

  function takeTrial() {
    groups = DATA.trials[Number(byId("trial").value)].groups;
    const iterations = [...new Set(groups.map((group) => group.iteration))].reverse();
    offer(byId("iteration"), [["", "all"], ...iterations.map((number) => [number, number])]);
    const ends = [...new Set(groups.flatMap((group) => group.members.map((member) => member.end)))].sort();
    offer(byId("end"), [["", "any"], ...ends.map((end) => [end, end || "(none)"])]);
    select();
  }

  function select() {
    const kept = found[shown] && found[shown].group;
    const wanted = byId("search").value.trim().toLowerCase();
    const chosen = Object.fromEntries(FILTERS.map((id) => [id, byId(id).value]));
    found = groups
      .filter((group) => !chosen.iteration || String(group.iteration) === chosen.iteration)
      .map((group) => ({ group, hits: new Set(group.members.flatMap((member, index) => (passes(group, member, chosen, wanted) ? [index] : []))) }))
      .filter(({ hits }) => hits.size)
      .reverse();  // the newest first
    shown = Math.max(found.findIndex(({ group }) => group === kept), 0);
    const name = ({ group }) => `${group.iteration} · ${(group.question || group.id).slice(0, 90)}`;
    byId("question").replaceChildren(...found.map((entry, index) => element("option", { value: index }, name(entry))));
    const all = groups.reduce((sum, group) => sum + group.members.length, 0);
    const passing = found.reduce((sum, { hits }) => sum + hits.size, 0);
    byId("count").textContent = `${passing} of ${all} trajectories, ${found.length} questions`;
    show();
  }

  function passes(group, member, chosen, wanted) {
    const retrieved = member.parts.some((part) => part.by === "retrieved");
    return (!chosen.outcome || (chosen.outcome === "correct") === member.correct)
      && (!chosen.policy || (chosen.policy === "hybrid") === member.hybrid)
      && (!chosen.retrieval || (chosen.retrieval === "with") === retrieved)
      && (!chosen.end || chosen.end === member.end)
      && (!wanted || texts(group, member).some((text) => text.toLowerCase().includes(wanted)));
  }

  function texts(group, member) {
    return [group.question, group.id, ...member.parts.map((part) => part.text)];
  }

  function show(member) {
    const { group, hits } = found[shown] || { group: null, hits: new Set() };
    if (found.length) byId("question").value = shown;
    showGroup(group, hits, byId("search").value.trim().toLowerCase());
    focused = -1;
    if (member !== undefined) focusCard(member);
  }

  function focusCard(place) {
    const cards = byId("group").querySelectorAll("article");
    focused = place;
    cards[place].focus();
    cards[place].scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // The next trajectory that passes the filters, in the next question where this one has no more.
  function moveMember(step) {
    if (!found.length) return;
    const hits = [...found[shown].hits];
    const next = step > 0 ? hits.find((place) => place > focused) : hits.findLast((place) => place < focused);
    if (next !== undefined) return focusCard(next);
    if (found[shown + step] === undefined) return;
    shown += step;
    const there = [...found[shown].hits];
    show(step > 0 ? there[0] : there.at(-1));
  }

  function moveQuestion(step) {
    if (found[shown + step] === undefined) return;
    shown += step;
    show();
  }

  const KEYS = {
    j: () => moveMember(1), ArrowRight: () => moveMember(1), k: () => moveMember(-1), ArrowLeft: () => moveMember(-1),
    "]": () => moveQuestion(1), "[": () => moveQuestion(-1), "/": () => byId("search").focus(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target === byId("search")) return byId("search").blur();
    if (event.target.matches("input, select") || !KEYS[event.key]) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  byId("group").addEventListener("focusin", (event) => {
    const card = event.target.closest("article");
    if (card) focused = [...card.parentElement.children].indexOf(card);
  });
  byId("trial").addEventListener("change", takeTrial);
  for (const id of FILTERS) byId(id).addEventListener("change", select);
  byId("search").addEventListener("input", select);
  byId("question").addEventListener("change", () => { shown = Number(byId("question").value); show(); });
  byId("before").addEventListener("click", () => moveQuestion(-1));
  byId("after").addEventListener("click", () => moveQuestion(1));

  offer(byId("trial"), DATA.trials.map((trial, index) => [index, trial.label]));
  byId("trial").parentElement.hidden = DATA.trials.length < 2;
  takeTrial();
})();
