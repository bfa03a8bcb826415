"use strict";
(() => {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });

  const tip = document.getElementById("tip");
  const svg = document.querySelector("#theme svg").namespaceURI;
  const make = (name, kind) => {
    const element = document.createElementNS(svg, name);
    element.setAttribute("class", kind);
    return element;
  };
  const shown = (value, unit) => {
    const number = unit ? value * 100 : value;
    const text = number !== 0 && (Math.abs(number) < 1e-4 || Math.abs(number) >= 1e6)
      ? number.toExponential(2) : String(Number(number.toPrecision(4)));
    return text.replace("-", "\u2212") + (unit ? "\u202f" + unit : "");
  };

  for (const chart of document.querySelectorAll(".chart svg")) {
    const [xLow, xHigh, left, right] = chart.dataset.x.split(" ").map(Number);
    const [yLow, yHigh, bottom, top] = chart.dataset.y.split(" ").map(Number);
    const curves = [...chart.querySelectorAll(".curve")].map((curve) => ({
      name: curve.dataset.name, colour: () => getComputedStyle(curve).stroke,
      at: JSON.parse(curve.dataset.at), values: JSON.parse(curve.dataset.values),
    }));
    const every = [...new Set(curves.flatMap((curve) => curve.at))].sort((a, b) => a - b);
    const marks = document.createElementNS(svg, "g");
    chart.append(marks);
    const hide = () => { marks.replaceChildren(); tip.hidden = true; };

    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
      const wanted = xLow + (x - left) / (right - left) * (xHigh - xLow);
      if (!every.length || x < left - 12 || x > right + 12) { hide(); return; }
      const at = every.reduce((best, next) => Math.abs(next - wanted) < Math.abs(best - wanted) ? next : best);
      const px = left + (at - xLow) / (xHigh - xLow) * (right - left);
      const rule = make("path", "rule");
      rule.setAttribute("d", `M${px} ${top}V${bottom}`);
      marks.replaceChildren(rule);
      const head = document.createElement("div");
      head.className = "head";
      head.textContent = `${chart.dataset.over} ${at}`;
      tip.replaceChildren(head);
      for (const curve of curves) {
        const value = curve.values[curve.at.indexOf(at)];
        if (value === undefined || value === null) continue;
        const dot = make("circle", "dot");
        dot.style.setProperty("--c", curve.colour());
        dot.setAttribute("cx", px);
        dot.setAttribute("cy", bottom - (value - yLow) / (yHigh - yLow) * (bottom - top));
        dot.setAttribute("r", 4);
        marks.append(dot);
        const row = document.createElement("div");
        const name = document.createElement("span");
        name.style.setProperty("--c", curve.colour());
        name.textContent = curve.name;
        const number = document.createElement("b");
        number.textContent = shown(value, chart.dataset.unit);
        row.append(name, number);
        tip.append(row);
      }
      tip.hidden = false;
      const width = tip.offsetWidth;
      const beyond = event.clientX + 18 + width > innerWidth;
      tip.style.left = (beyond ? event.clientX - 18 - width : event.clientX + 18) + "px";
      tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    });
  }
})();
