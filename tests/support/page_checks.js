// What a test asks of a page from within; it tells the frame around it.
(async () => {
  const ground = getComputedStyle(document.body).backgroundColor;
  const found = { width: document.documentElement.scrollWidth, ground, axe: null };
  const visible = (one) => one.getBoundingClientRect().width > 0;
  const press = (on, key) => on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const mute = (one) => {
    press(one, "End");
    const said = !tip.hidden && tip.innerText.trim();
    press(one, "Escape");
    return !said || !tip.hidden;
  };
  const figures = [...document.querySelectorAll(".drawing[tabindex], .drawing [tabindex]")].filter(visible);
  found.silent = figures.filter(mute).map((one) => one.closest("figure").id);
  const hidden = (one) => one.scrollWidth > one.clientWidth + 1 && one.tabIndex !== 0;
  found.unreached = [...document.querySelectorAll(".scroll")].filter(hidden).length;
  if (window.axe) {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    const grave = violations.filter((one) => ["serious", "critical"].includes(one.impact));
    const told = (node) => `${node.target.join(" ")} ${node.any[0]?.message || ""}`;
    found.axe = grave.map((one) => `${one.id}: ${one.nodes.slice(0, 4).map(told).join(" | ")}`);
  }
  parent.postMessage(found, "*");
})();
