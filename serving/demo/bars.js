// Votes as bars, one a class; a whole track is all draws.

// Of more classes than these and one, the rest share a bar.
const MOST = 10;

export function number(value) {
  return value.toLocaleString("en-US");
}

function element(tag, name) {
  const node = document.createElement(tag);
  node.className = name;
  return node;
}

function row(place) {
  const node = element("div", "row");
  const name = element("span", "name");
  const track = element("span", "track");
  const bar = element("span", "bar");
  const count = element("span", "count");
  track.append(bar);
  node.append(name, track, count);
  place.append(node);
  return { node, name, bar, count };
}

// The winner first, then by votes; equals stay in the order of the classes.
function leading(all) {
  const sorted = all.toSorted((a, b) => b.wins - a.wins || b.votes - a.votes);
  const rest = sorted.splice(MOST);
  const votes = rest.reduce((sum, one) => sum + one.votes, 0);
  return [...sorted, { name: `${rest.length} others`, votes, wins: false }];
}

export class Bars {
  constructor(place, names) {
    this.names = names;
    const length = Math.min(names.length, MOST + 1);
    this.rows = Array.from({ length }, () => row(place));
    this.show(names.map(() => 0), 1, -1);
  }

  show(counts, n, winner) {
    const all = this.names.map((name, label) => (
      { name, votes: counts[label], wins: label === winner }));
    const shown = all.length > this.rows.length ? leading(all) : all;
    this.rows.forEach(({ node, name, bar, count }, i) => {
      name.textContent = shown[i].name;
      bar.style.width = `${100 * shown[i].votes / n}%`;
      count.textContent = number(shown[i].votes);
      node.classList.toggle("winner", shown[i].wins);
    });
  }
}
