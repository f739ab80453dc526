import { describe, expect, it } from 'vitest';
import {
  RANGES,
  change,
  customDays,
  defaultInterval,
  drawnZone,
  intervalsOf,
  isCut,
  isRange,
  iso,
  previous,
  windowOf,
  withoutLead,
  type Range,
} from '../../src/pure/window';

const NOW = Date.parse('2026-11-21T09:30:20.500Z');
const ranges = Object.keys(RANGES) as Range[];
const start = (range: Range, zone = 'UTC') => iso(windowOf(range, NOW, zone).start);

describe('windows', () => {
  it('begin with a whole minute, hour or day of the zone', () => {
    expect(start('1h')).toBe('2026-11-21T08:31:00.000Z');
    expect(start('24h')).toBe('2026-11-20T10:00:00.000Z');
    expect(start('today')).toBe('2026-11-21T00:00:00.000Z');
    expect(start('today', 'America/New_York')).toBe('2026-11-21T05:00:00.000Z');
    expect(start('today', 'Asia/Tokyo')).toBe('2026-11-20T15:00:00.000Z');
    expect(start('7d')).toBe('2026-11-15T00:00:00.000Z');
    expect(start('30d', 'Europe/Berlin')).toBe('2026-10-22T22:00:00.000Z');
    expect(start('month')).toBe('2026-11-01T00:00:00.000Z');
    expect(start('12mo')).toBe('2025-12-01T00:00:00.000Z');
    expect(start('all')).toBeUndefined();
  });

  it('of chosen days hold the last day to its end', () => {
    const days = customDays('2026-10-25', '2026-10-25')!;
    const window = windowOf('custom', NOW, 'Europe/Berlin', days);
    expect(iso(window.start)).toBe('2026-10-24T22:00:00.000Z');
    expect(iso(window.end)).toBe('2026-10-25T23:00:00.000Z');
  });

  it('of chosen days that end today or later end now: the future has no points', () => {
    const end = (to: string, zone = 'UTC') => windowOf('custom', NOW, zone, ['2026-11-01', to]).end;
    expect(end('2026-11-21')).toBeNull();
    expect(end('2026-12-24')).toBeNull();
    expect(iso(end('2026-11-20'))).toBe('2026-11-21T00:00:00.000Z');
    // It is the 21st in Kiritimati when it is the 20th in Samoa.
    expect(end('2026-11-21', 'Pacific/Kiritimati')).toBeNull();
    expect(iso(end('2026-11-20', 'Pacific/Kiritimati'))).toBe('2026-11-20T10:00:00.000Z');
  });

  it('of all time begin with what there was first', () => {
    const all = (since: string) => windowOf('all', NOW, 'UTC', null, Date.parse(since));
    expect(iso(all('2026-11-20T13:47:12Z').start)).toBe('2026-11-20T13:47:00.000Z');
    const hourly = all('2026-11-20T13:47:12Z');
    expect(defaultInterval(intervalsOf(hourly, NOW, 1095), hourly, NOW)).toBe('hour');
    const point = (total_clicks: number) => ({ start: '2026-11-20T00:00:00Z', total_clicks, unique_clicks: 0 });
    expect(withoutLead([0, 0, 3, 0].map(point))).toEqual([3, 0].map(point));
    expect(withoutLead([0, 0].map(point))).toHaveLength(2);
  });

  it('of reversed days are swapped, and of invalid days rejected', () => {
    expect(customDays('2026-02-02', '2026-01-01')).toEqual(['2026-01-01', '2026-02-02']);
    for (const bad of [null, '', '2026-13-01', '2026-1-1', 'yesterday', '2026-01-32']) {
      expect(customDays(bad, '2026-01-01')).toBeNull();
    }
  });

  it('have at least one interval, and never one of more than 1000 points', () => {
    const length = { minute: 60e3, hour: 3600e3, day: 86400e3, month: 28 * 86400e3 };
    for (const range of ranges) {
      for (const retention of [30, 90, 365, 730, 1095]) {
        const window = windowOf(range, NOW, 'Europe/Berlin');
        const intervals = intervalsOf(window, NOW, retention);
        expect(intervals.length, range).toBeGreaterThan(0);
        const from = window.start ?? NOW - retention * 86400e3;
        for (const interval of intervals) expect((NOW - from) / length[interval]).toBeLessThanOrEqual(1000);
        expect(intervals).toContain(defaultInterval(intervals, window, NOW));
      }
    }
  });

  it('are drawn in the parts that people expect', () => {
    const drawn = (range: Range, retention = 1095) => {
      const window = windowOf(range, NOW, 'UTC');
      return defaultInterval(intervalsOf(window, NOW, retention), window, NOW);
    };
    expect(ranges.map((range) => drawn(range))).toEqual([
      'minute', 'hour', 'hour', 'day', 'day', 'day', 'day', 'month', 'month', 'day',
    ]);
  });

  it('of long stretches are drawn in UTC where clocks are off by a part of an hour', () => {
    const zoneOf = (range: Range, zone: string) => drawnZone(windowOf(range, NOW, zone), NOW, zone, 365);
    expect(zoneOf('90d', 'Asia/Kolkata')).toBe('UTC');
    expect(zoneOf('all', 'Asia/Kolkata')).toBe('UTC');
    expect(zoneOf('30d', 'Asia/Kolkata')).toBe('Asia/Kolkata');
    expect(zoneOf('90d', 'Europe/Berlin')).toBe('Europe/Berlin');
  });

  it('are compared with as much time just before', () => {
    const before = previous(windowOf('24h', NOW, 'UTC'), NOW)!;
    expect(before.end).toBe(windowOf('24h', NOW, 'UTC').start);
    expect(before.end - before.start).toBe(NOW - before.end);
    expect(previous({ start: null, end: null }, NOW)).toBeNull();
    expect(previous({ start: NOW + 5, end: null }, NOW)).toBeNull();
  });

  it('say when the plan cut them', () => {
    expect(isCut(Date.parse('2026-01-01T00:00:00Z'), '2026-10-22T00:00:00.000Z')).toBe(true);
    expect(isCut(Date.parse('2026-10-22T00:00:00Z'), '2026-10-22T00:00:00.000Z')).toBe(false);
    expect(isCut(null, '2026-10-22T00:00:00.000Z')).toBe(false);
  });

  it('know their names', () => {
    expect(ranges.every(isRange)).toBe(true);
    expect([null, '', 'toString', '8d'].some(isRange)).toBe(false);
  });
});

describe('a change', () => {
  it('is in percent, and from nothing there is none', () => {
    expect([change(100, 150), change(3, 1), change(5, 5), change(0, 7)]).toEqual([50, -67, 0, null]);
    expect([change(null, 7), change(7, null)]).toEqual([null, null]);
  });
});
