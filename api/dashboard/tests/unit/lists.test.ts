import { describe, expect, it } from 'vitest';
import { attemptId, byDelivery } from '../../src/pure/failures';
import type { Failure } from '../../src/client/types';
import { append, prepend, replace } from '../../src/pure/lists';
import { faded, seen } from '../../src/pure/recent';

const id = (item: { id: string }) => item.id;
const items = (...ids: string[]) => ids.map((id) => ({ id }));

describe('lists in pages', () => {
  it('go on with the next cursor and end without one', () => {
    const first = append({ items: [], next: null }, { items: items('a', 'b'), next: 'c1' }, id);
    expect(first).toEqual({ items: items('a', 'b'), next: 'c1' });
    expect(append(first, { items: items('c'), next: null }, id)).toEqual({ items: items('a', 'b', 'c'), next: null });
  });

  it('show an item once, also when it moved to a later page meanwhile', () => {
    const both = append({ items: items('a', 'b'), next: 'x' }, { items: items('b', 'c'), next: null }, id);
    expect(both.items).toEqual(items('a', 'b', 'c'));
  });

  it('take a new item in front once, and let the oldest go', () => {
    expect(prepend(items('a', 'b'), { id: 'n' }, id, 2)).toEqual(items('n', 'a'));
    expect(prepend(items('a', 'b'), { id: 'b' }, id, 2)).toEqual(items('a', 'b'));
  });

  it('replace what changed and nothing else', () => {
    expect(replace([{ id: 'a', n: 1 }, { id: 'b', n: 1 }], { id: 'b', n: 2 }, id)).toEqual([
      { id: 'a', n: 1 },
      { id: 'b', n: 2 },
    ]);
  });
});

describe('recent clicks', () => {
  it('count each click once and forget it after five minutes', () => {
    const now = 1_000_000;
    let recent = seen(new Map(), 'a', now, now);
    recent = seen(recent, 'a', now, now + 1);
    recent = seen(recent, 'b', now + 60_000, now + 60_000);
    expect(recent.size).toBe(2);
    expect(faded(recent, now + 300_000).size).toBe(1);
    expect(seen(recent, 'c', now + 400_000, now + 400_000).size).toBe(1);
    expect(seen(recent, 'late', now - 300_000, now).size).toBe(2);
  });
});

describe('failures', () => {
  it('stand together by delivery, and the delivery that failed last comes first', () => {
    const attempt = (delivery_id: string, attempt: number) => ({ delivery_id, attempt }) as Failure;
    const found = byDelivery([attempt('b', 2), attempt('a', 5), attempt('b', 1), attempt('a', 4)]);
    expect(found.map(({ id, attempts }) => [id, attempts.map((one) => one.attempt)])).toEqual([
      ['b', [2, 1]],
      ['a', [5, 4]],
    ]);
    expect(byDelivery([])).toEqual([]);
  });

  it('differ even if a redelivery fails with the same number', () => {
    const attempt = (delivery_id: string, attempt: number, attempted_at: string) => ({ delivery_id, attempt, attempted_at }) as Failure;
    const newest = attempt('a', 1, '11:00');
    const others = [attempt('b', 1, '11:00'), attempt('a', 2, '10:10'), attempt('a', 1, '10:00')];
    const first = { items: [newest], next: 'x' };
    expect(append(first, { items: [newest, ...others], next: null }, attemptId).items).toEqual([newest, ...others]);
  });
});
