// Small helpers; only what differs is written, so that focus and selection stay where they are.

export const byId = (id) => document.getElementById(id);

export function element(tag, classes = "", ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Table cells; the labels stand before the figures where a row is drawn as a card.
export function row(labels, classes) {
  const made = element("tr");
  made.setAttribute("role", "row");
  const cells = labels.map((label, index) => {
    const cell = element("td", classes[index] ?? "");
    cell.setAttribute("role", "cell");
    cell.dataset.label = label;
    made.append(cell);
    return cell;
  });
  return { node: made, cells };
}

// One child of the container for each item, in their order; children are kept by key.
export class KeyedList {
  #container;
  #create;
  #entries = new Map();

  // create(item) gives { node, update(item) }.
  constructor(container, create) {
    this.#container = container;
    this.#create = create;
  }

  show(items, keyOf) {
    const before = this.#entries;
    this.#entries = new Map();
    items.forEach((item, index) => {
      const key = keyOf(item);
      const entry = before.get(key) ?? this.#create(item);
      before.delete(key);
      this.#entries.set(key, entry);
      entry.update(item);
      if (this.#container.children[index] !== entry.node) {
        this.#container.insertBefore(entry.node, this.#container.children[index] ?? null);
      }
    });
    for (const entry of before.values()) entry.node.remove();
  }
}
