// Votes as bars, one a class; a whole track is all draws.

export function number(value) {
  return value.toLocaleString("en-US");
}

function element(tag, name) {
  const node = document.createElement(tag);
  node.className = name;
  return node;
}

export class Bars {
  constructor(place, names) {
    this.rows = names.map((name) => {
      const row = element("div", "row");
      const label = element("span", "name");
      const track = element("span", "track");
      const bar = element("span", "bar");
      const count = element("span", "count");
      label.textContent = name;
      track.append(bar);
      row.append(label, track, count);
      place.append(row);
      return { row, bar, count };
    });
    this.show(names.map(() => 0), 1, -1);
  }

  show(counts, n, winner) {
    this.rows.forEach(({ row, bar, count }, label) => {
      bar.style.width = `${100 * counts[label] / n}%`;
      count.textContent = number(counts[label]);
      row.classList.toggle("winner", label === winner);
    });
  }
}
