import { describe, expect, it } from 'vitest';
import { NUMBERS, axisOf } from '../../src/pure/axis';

/** The widest label, "Wed, 12 AM" in 12 px, has less. */
const LABEL = 80;

describe('the x axis', () => {
  it('keeps every label whole and apart from the next, on every width', () => {
    const bad: string[] = [];
    for (let width = 260; width <= 1200; width += 7) {
      for (let points = 1; points <= 400; points += 1) {
        const { step, padding } = axisOf(points, width);
        const drawn = width - NUMBERS - padding;
        const between = points > 1 ? drawn / (points - 1) : 0;
        const last = points > 1 ? Math.floor((points - 1) / step) * step * between : drawn / 2;
        if (drawn - last + padding < LABEL / 2 - 1) bad.push(`cut: ${points} points on ${width}`);
        if (points > step && step * between < LABEL * 0.8) bad.push(`close: ${points} points on ${width}`);
      }
    }
    expect(bad).toEqual([]);
  });
});
