/** The labels of a series' x axis: which points have one, and the padding for the last one. */

/** The width of the numbers of the y axis, in pixels. */
export const NUMBERS = 48;

/** The least width of a label, in pixels. */
const LABEL = 84;
const LEAST_PADDING = 14;

/**
 * How many points share a label, and the padding on the right in pixels.
 *
 * Points span the drawing, and a label is centred below its point.
 */
export function axisOf(points: number, width: number): { step: number; padding: number } {
  const drawn = Math.max(LABEL, width - NUMBERS - LEAST_PADDING);
  const step = Math.max(1, Math.ceil(((points - 1) * LABEL) / drawn));
  const after = (points - 1) % step;
  const room = points > 1 ? (after * drawn) / (points - 1) : drawn / 2;
  return { step, padding: Math.max(LEAST_PADDING, Math.ceil(LABEL / 2 - room)) };
}
