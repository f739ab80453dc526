/** Lists that come in pages. */

/** The items so far, and the cursor of the next page; null after the last. */
export interface Listed<T> {
  items: T[];
  next: string | null;
}

/**
 * Appends a page, without items that are there already.
 *
 * An item may appear on two pages when the order changes between them.
 */
export function append<T>(so_far: Listed<T>, page: Listed<T>, id: (item: T) => string): Listed<T> {
  const known = new Set(so_far.items.map(id));
  return { items: [...so_far.items, ...page.items.filter((item) => !known.has(id(item)))], next: page.next };
}

/** Prepends an item, and drops the last beyond `most`. */
export function prepend<T>(items: T[], item: T, id: (item: T) => string, most: number): T[] {
  if (items.some((one) => id(one) === id(item))) return items;
  return [item, ...items].slice(0, most);
}

/** Replaces the item with the same id, if it is there. */
export const replace = <T>(items: T[], item: T, id: (item: T) => string): T[] =>
  items.map((one) => (id(one) === id(item) ? item : one));
