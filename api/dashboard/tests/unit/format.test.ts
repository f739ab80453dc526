import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import * as format from '../../src/pure/format';

beforeEach(() => format.speak('en-US'));
afterEach(() => format.speak(undefined));

describe('numbers', () => {
  it('that are not known are never zero', () => {
    expect([format.count(null), format.shortCount(undefined), format.percent(null)]).toEqual(['–', '–', '–']);
    expect([format.count(0), format.shortCount(0), format.percent(0)]).toEqual(['0', '0', '0%']);
  });

  it('are written by the language', () => {
    expect(format.count(1234567)).toBe('1,234,567');
    expect([format.shortCount(9999), format.shortCount(12345), format.shortCount(3_400_000)]).toEqual([
      '9,999',
      '12.3K',
      '3.4M',
    ]);
    format.speak('de-DE');
    expect(format.count(1234567)).toBe('1.234.567');
  });

  it('that are rates keep two decimals', () => {
    expect([format.percent(33.33), format.percent(100), format.percent(0.5)]).toEqual(['33.33%', '100%', '0.5%']);
    expect([format.signed(12), format.signed(-3), format.signed(0)]).toEqual(['+12%', '-3%', '0%']);
  });

  it('stand before one or many', () => {
    expect([format.plural(1, 'click'), format.plural(0, 'click'), format.plural(2, 'entry', 'entries')]).toEqual([
      '1 click',
      '0 clicks',
      '2 entries',
    ]);
  });
});

describe('times', () => {
  const at = '2026-11-21T23:30:05.000Z';

  it('are the zone’s', () => {
    expect(format.day(at, 'UTC')).toBe('Nov 21, 2026');
    expect(format.day(at, 'Asia/Tokyo')).toBe('Nov 22, 2026');
    expect(format.pointLabel(at, 'month', 'UTC')).toBe('November 2026');
    expect(format.pointLabel(at, 'day', 'Asia/Tokyo')).toBe('Sun, Nov 22, 2026');
  });

  it('are relative to now', () => {
    const now = Date.parse(at);
    const ago = (seconds: number) => format.relative(now - seconds * 1000, now);
    expect([ago(0), ago(5), ago(119), ago(7200), ago(86400), ago(-3600)]).toEqual([
      'now',
      '5 seconds ago',
      '1 minute ago',
      '2 hours ago',
      'yesterday',
      'in 1 hour',
    ]);
  });

  it('that something took have a unit', () => {
    expect([format.duration(85), format.duration(1240), format.duration(15_000)]).toEqual(['85 ms', '1.2 s', '15 s']);
    expect([format.days(30), format.days(365), format.days(730), format.days(1095)]).toEqual([
      '30 days',
      '12 months',
      '2 years',
      '3 years',
    ]);
  });
});

describe('names', () => {
  it('of countries are the language’s; what is none stays as it is', () => {
    expect([format.country('DE'), format.country('T1'), format.country('de')]).toEqual(['Germany', 'T1', 'de']);
  });

  it('of destinations omit scheme and final slash', () => {
    expect(format.withoutScheme('https://example.com/')).toBe('example.com');
    expect(format.withoutScheme('HTTP://example.com/a/')).toBe('example.com/a/');
    expect(format.withoutScheme('https://example.com?x=http://a/')).toBe('example.com?x=http://a/');
  });
});
