import { describe, expect, it } from 'vitest';
import type { LinkFields } from '../../src/client/types';
import * as link from '../../src/pure/link';

describe('slugs', () => {
  it('that the API takes have no fault', () => {
    for (const good of ['', 'a', 'A-1_b', 'x'.repeat(64), 'APIs', 'Zz-9_']) expect(link.slugFault(good)).toBeNull();
  });

  it('that it rejects have one', () => {
    for (const bad of ['a b', 'a/b', 'ä', 'a.b', 'x'.repeat(65), 'api', 'API', 'Readyz', 'robots.txt', '.well-known']) {
      expect(link.slugFault(bad), bad).not.toBeNull();
    }
  });

  it('from before a rule have none until they change', () => {
    expect(link.slugFault('API', 'API')).toBeNull();
    for (const changed of ['api', 'App']) expect(link.slugFault(changed, 'API'), changed).not.toBeNull();
  });

  it('derived from names are slugs', () => {
    for (const name of ['Spring sale 2027!', 'Über Größe', '  --  ', '日本', 'a'.repeat(90), `${'a'.repeat(39)} b`]) {
      expect(link.slugFault(link.slugOf(name)), name).toBeNull();
    }
    expect(link.slugOf('Crème brûlée & more')).toBe('creme-brulee-more');
    expect(link.slugOf(`${'a'.repeat(39)} b`)).toBe('a'.repeat(39));
  });
});

describe('destinations', () => {
  it('are full addresses of the web', () => {
    for (const good of ['https://example.com', 'HTTP://example.com:8080/a@b?c=//d#e', 'https://example.com?a']) {
      expect(link.destinationFault(good)).toBeNull();
    }
    for (const bad of ['', 'example.com', 'javascript:alert(1)', 'ftp://a.b', 'https://u:p@a.b', `https://a.b/${'x'.repeat(2048)}`]) {
      expect(link.destinationFault(bad), bad).not.toBeNull();
    }
    for (const repaired of ['https:a.b', 'https:/a.b', 'https:///a.b', 'https://@a.b', 'https://a.b/x y', 'https:\\\\a.b', 'https://a.b/\\']) {
      expect(link.destinationFault(repaired), repaired).not.toBeNull();
    }
  });

  it('are linked to only when they are of the web', () => {
    expect(link.webAddress('https://a.b')).toBe('https://a.b');
    for (const bad of ['javascript:alert(1)', ' https://a.b', 'data:text/html,x', '//a.b', '']) {
      expect(link.webAddress(bad), bad).toBeUndefined();
    }
  });

  it('typed without a scheme get one', () => {
    expect(link.completed(' example.com/a ')).toBe('https://example.com/a');
    expect(link.completed('example.com:8080')).toBe('https://example.com:8080');
    for (const whole of ['https://example.com', 'javascript:alert(1)', 'localhost', 'mailto:a@b.example']) {
      expect(link.completed(whole)).toBe(whole);
    }
  });
});

describe('UTM parameters', () => {
  it('are read from the query', () => {
    const utm = link.readUtm('https://a.b/?x=1&utm_source=news%20letter&utm_medium=e+mail#utm_term=no');
    expect(utm).toEqual({
      utm_source: 'news letter',
      utm_medium: 'e mail',
      utm_campaign: '',
      utm_term: '',
      utm_content: '',
    });
  });

  it('are set where they stand, and the rest of the address stays to the letter', () => {
    const before = 'https://a.b/p%20q?x=%7e&utm_source=old&flag&y=1+2#frag?utm_source=z';
    expect(link.writeUtm(before, 'utm_source', 'new & old')).toBe(
      'https://a.b/p%20q?x=%7e&utm_source=new%20%26%20old&flag&y=1+2#frag?utm_source=z',
    );
    expect(link.writeUtm(before, 'utm_source', '')).toBe('https://a.b/p%20q?x=%7e&flag&y=1+2#frag?utm_source=z');
    expect(link.writeUtm('https://a.b', 'utm_term', 'x')).toBe('https://a.b?utm_term=x');
    expect(link.writeUtm('https://a.b?utm_term=x', 'utm_term', '')).toBe('https://a.b');
  });

  it('given twice become one', () => {
    expect(link.writeUtm('https://a.b?utm_term=x&c=1&utm_term=y', 'utm_term', 'z')).toBe('https://a.b?utm_term=z&c=1');
  });

  it('come back as they were set, also from text that is no address yet', () => {
    for (const base of ['', 'example', 'https://a.b/%zz?%zz=1', 'https://a.b/?a=b#c']) {
      for (const value of ['plain', 'a b', 'ä&=?#+%', '日本']) {
        expect(link.readUtm(link.writeUtm(base, 'utm_content', value)).utm_content, base).toBe(value);
      }
    }
  });
});

describe('times of inputs', () => {
  it('come back as they were', () => {
    const instant = '2027-03-01T10:30:00.000Z';
    expect(link.fromLocalInput(link.toLocalInput(instant))).toBe(instant);
    expect([link.toLocalInput(null), link.fromLocalInput('')]).toEqual(['', null]);
  });
});

describe('changes of a link', () => {
  const loaded: LinkFields = {
    destination: 'https://a.b/',
    slug: 'spring',
    name: 'Spring',
    tags: ['sale'],
    is_active: true,
    forward_query: 'append',
    append_click_id: true,
    expires_at: '2027-03-01T10:30:00Z',
    redirect_status: 302,
    external_id: null,
  };

  it('are the fields that differ', () => {
    expect(link.changes(loaded, { ...loaded, tags: ['sale'] })).toEqual({});
    const edited = { name: 'Summer', tags: [], is_active: false, expires_at: null, external_id: 'x' };
    expect(link.changes(loaded, { ...loaded, ...edited })).toEqual(edited);
  });

  it('stay over a newer version, which keeps the rest', () => {
    const edited: LinkFields = { ...loaded, name: 'Summer', expires_at: null };
    const newer: LinkFields = { ...loaded, name: 'Winter', tags: ['sale', 'new'], redirect_status: 301 };
    const both = link.merged(loaded, edited, newer);
    expect(both).toEqual({ ...newer, name: 'Summer', expires_at: null });
    expect(link.changes(newer, both)).toEqual({ name: 'Summer', expires_at: null });
    expect(link.merged(loaded, loaded, newer)).toEqual(newer);
    // Both did the same.
    expect(link.changes(newer, link.merged(loaded, { ...loaded, name: 'Winter' }, newer))).toEqual({});
  });

  it('are shown as text', () => {
    const text = (name: string, value: unknown) => link.fieldText(name, value, 'Europe/Berlin');
    expect(text('name', 'append')).toBe('append');
    expect(text('tags', ['a', 'b'])).toBe('a, b');
    expect(text('redirect_status', 301)).toBe('301');
    expect(text('expires_at', '2027-03-01T10:30:00Z')).toMatch(/^Mar 1, 2027, 11:30\sAM$/);
    expect([text('tags', []), text('expires_at', null), text('external_id', null)]).toEqual(['none', 'none', 'none']);
    expect([text('is_active', true), text('append_click_id', false)]).toEqual(['on', 'off']);
    expect([text('forward_query', 'append'), text('forward_query', 'off')]).toEqual(['on', 'off']);
  });
});
