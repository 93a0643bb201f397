// Click through the denoising of a recommended semantic ID. All text is set as text, never as HTML.
"use strict";
(() => {
  const users = JSON.parse(document.getElementById("examples").textContent);

  function make(tag, text = "", className = "") {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = className;
    return element;
  }

  const percent = (share) => (share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);
  const items = (count) => `${count.toLocaleString("en")} ${count === 1 ? "item" : "items"}`;

  function drawDigits(denoising, number) {
    const row = make("div", "", "digits");
    const filled = denoising.steps.slice(0, number).map((step) => step.chosen);
    denoising.sid.forEach((code, digit) => {
      const index = filled.findIndex((choice) => choice.digit === digit);
      const isNew = index >= 0 && index === number - 1;
      const box = make("div", "", index < 0 ? "masked" : isNew ? "new" : "known");
      box.append(make("small", `digit ${digit + 1}`), make("strong", index < 0 ? "?" : String(code)));
      box.append(make("small", isNew ? percent(filled[index].probability) : "\u00a0"));
      row.append(box);
    });
    return row;
  }

  function drawChoices(step) {
    const grid = make("div", "", "choices");
    const choices = [step.chosen, ...step.alternatives].sort((a, b) => b.probability - a.probability);
    for (const choice of choices) {
      const mark = choice === step.chosen ? "taken" : "";
      const bar = make("div", "", "bar");
      const length = make("i");
      length.style.width = `${(100 * choice.probability) / choices[0].probability}%`;
      bar.append(length);
      grid.append(make("span", `digit ${choice.digit + 1} = ${choice.code}`, mark), bar);
      grid.append(make("span", percent(choice.probability), mark), make("span", items(choice.items_left)));
    }
    return grid;
  }

  function describeItems(denoising, number) {
    const step = denoising.steps[number - 1];
    const count = step ? step.chosen.items_left : denoising.num_items;
    const titles = step ? step.titles_left : [];
    const more = titles.length && titles.length < count ? "; ..." : "";
    return `${items(count)} possible${titles.length ? ": " + titles.join("; ") + more : ""}`;
  }

  function describeEnd(denoising, number) {
    const rest = denoising.sid.length - denoising.steps.length;
    if (number < denoising.steps.length || rest === 0) return "";
    return "The search ended here: the other digits follow, or the items left are ranked by their own scores.";
  }

  function show(viewer, recommended, number) {
    const denoising = recommended.denoising, last = denoising.steps.length;
    const controls = make("p", "", "steps");
    const back = make("button", "Back"), next = make("button", "Next");
    back.disabled = number === 0;
    next.disabled = number === last;
    back.type = next.type = "button";
    back.onclick = () => { show(viewer, recommended, number - 1); focus(viewer, 0); };
    next.onclick = () => { show(viewer, recommended, number + 1); focus(viewer, 1); };
    controls.append(back, make("span", number ? `step ${number} of ${last}` : "start"), next);
    const parts = [make("h4", `${recommended.title}: semantic ID ${denoising.sid.join(" ")}`)];
    const why = recommended.score === null ? "it is popular and fills the list" : "its item score brought it here";
    if (!denoising.is_generated) parts.push(make("p", `Beam search lost this one; ${why}. Most probable digit first:`));
    parts.push(drawDigits(denoising, number), controls, make("p", describeItems(denoising, number)));
    if (number) parts.push(make("p", "What was weighed at this step, and how many items each choice leaves:"));
    if (number) parts.push(drawChoices(denoising.steps[number - 1]));
    parts.push(make("p", describeEnd(denoising, number)));
    viewer.replaceChildren(...parts);
    viewer.hidden = false;
  }

  function focus(viewer, index) {
    const buttons = viewer.querySelectorAll(".steps button");
    (buttons[index].disabled ? buttons[1 - index] : buttons[index]).focus();
  }

  function choose(button, number) {
    const user = button.dataset.user;
    for (const other of document.querySelectorAll(`button[data-user="${user}"]`))
      other.setAttribute("aria-pressed", other === button);
    const viewer = document.querySelector(`.viewer[data-user="${user}"]`);
    show(viewer, users[user].recommended[button.dataset.item], number);
    return viewer;
  }

  for (const button of document.querySelectorAll("ol.recommended button"))
    button.onclick = () => choose(button, 1).scrollIntoView({ block: "nearest" });
  for (const user of document.querySelectorAll("details.user")) {
    const buttons = [...user.querySelectorAll("ol.recommended button")];
    const isGenerated = ({ dataset }) => users[dataset.user].recommended[dataset.item].denoising.is_generated;
    if (buttons.length) choose(buttons.find(isGenerated) || buttons[0], 1);
  }
})();
