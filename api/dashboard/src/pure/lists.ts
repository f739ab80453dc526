/** Lists that come in pages. */

/** What is there so far, and the cursor of the page that follows; null after the last. */
export interface Listed<T> {
  items: T[];
  next: string | null;
}

/**
 * Appends a page. What is there already is not there twice.
 *
 * A list that moves while it is read (a link gets more clicks and another place) may show an item on two pages.
 */
export function append<T>(so_far: Listed<T>, page: Listed<T>, id: (item: T) => string): Listed<T> {
  const known = new Set(so_far.items.map(id));
  return { items: [...so_far.items, ...page.items.filter((item) => !known.has(id(item)))], next: page.next };
}

/** Puts one item in front, and lets the last go where there are more than `most`. */
export function prepend<T>(items: T[], item: T, id: (item: T) => string, most: number): T[] {
  if (items.some((one) => id(one) === id(item))) return items;
  return [item, ...items].slice(0, most);
}

/** Replaces the item of the same id; a list without it stays as it is. */
export const replace = <T>(items: T[], item: T, id: (item: T) => string): T[] =>
  items.map((one) => (id(one) === id(item) ? item : one));
