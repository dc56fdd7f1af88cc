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
  const bar = document.querySelector(".sections");
  found.cut = bar ? bar.scrollWidth - bar.clientWidth : 0;

  // texts of drawings: their sizes on the screen, and those that touch
  const texts = (svg) => [...svg.querySelectorAll("text")].filter((one) => visible(one) && one.textContent.trim());
  const size = (one) => parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a;
  const where = (one) => (one.closest("figure") || one.closest(".card")).id || one.ownerSVGElement.id;
  const told = (one) => `${where(one)}: ${one.textContent.trim()}`;
  const drawn = [...document.querySelectorAll("main svg")].filter(visible).map(texts);
  found.small = drawn.flat().filter((one) => size(one) < 10.95).map((one) => `${told(one)} ${size(one).toFixed(1)}`);
  const shared = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const touch = (a, b) => a.left < b.right + 3 && b.left < a.right + 3 && shared(a, b) > Math.min(a.height, b.height) / 2;
  found.touching = [];
  for (const each of drawn) {
    const boxes = each.map((one) => [one, one.getBoundingClientRect()]);
    boxes.forEach(([one, box], i) => {
      for (const [other, next] of boxes.slice(i + 1))
        if (touch(box, next)) found.touching.push(`${told(one)} | ${other.textContent.trim()}`);
    });
  }
  found.outside = drawn.flat().filter((one) => {
    const [box, card] = [one.getBoundingClientRect(), one.closest(".card").getBoundingClientRect()];
    return !one.closest(".scroll") && (box.left < card.left || box.right > card.right);
  }).map(told);
  if (window.axe) {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    const grave = violations.filter((one) => ["serious", "critical"].includes(one.impact));
    const told = (node) => `${node.target.join(" ")} ${node.any[0]?.message || ""}`;
    found.axe = grave.map((one) => `${one.id}: ${one.nodes.slice(0, 4).map(told).join(" | ")}`);
  }
  parent.postMessage(found, "*");
})();
