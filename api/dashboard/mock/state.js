/** The state of the mock API: an account with links, clicks, keys and webhook endpoints. */

const DAY = 86_400_000;

/** Numbers that look random and are the same at each start (mulberry32). */
export function dice(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
let drawn = 0;

/** An id of the API's form: a prefix and 26 characters. */
export function id(prefix) {
  const draw = dice(++drawn);
  return `${prefix}_0${Array.from({ length: 25 }, () => ALPHABET[Math.floor(draw() * 32)]).join('')}`;
}

const iso = (time) => new Date(time).toISOString();

const LINKS = [
  ['spring', 'Spring sale 2026', 'https://shop.example.com/sale/spring?utm_source=newsletter&utm_medium=email&utm_campaign=spring', ['sale', 'newsletter'], 34],
  ['docs', 'Documentation', 'https://docs.example.com/getting-started', ['product'], 21],
  ['webinar', 'Webinar: attribution without cookies', 'https://events.example.com/webinars/attribution-without-cookies', ['events'], 16],
  ['app', 'iOS app', 'https://apps.example.com/ios/id1234567890', ['mobile'], 12],
  ['podcast-42', 'Podcast, episode 42', 'https://podcast.example.com/42', ['podcast'], 9],
  ['gh', 'Source code', 'https://code.example.com/acme/platform', ['product'], 8],
  ['hiring', 'We are hiring', 'https://example.com/careers#open-positions', ['people'], 5],
  ['pricing-b', 'Pricing page, variant B', 'https://example.com/pricing?variant=b&utm_source=ads&utm_medium=cpc', ['ads', 'experiment'], 4],
  ['x9Kp2Qa', 'Partner: Nordwind', 'https://nordwind.example.org/partner/acme', ['partners'], 3],
  ['qr-booth', 'Booth at the fair', 'https://example.com/fair?utm_source=booth&utm_medium=qr', ['events'], 2.5],
  ['old-campaign', 'Winter campaign', 'https://example.com/winter', ['sale'], 1],
  ['xss', '<img src=x onerror=alert(1)> "quoted" & </script>', 'https://example.com/?q=%3Cscript%3Ealert(1)%3C/script%3E', ['<b>bold</b>'], 0.4],
  ['über-uns', 'A name that is long enough to be cut off somewhere because nobody should ever write names that long, but they do', 'https://example.com/a/very/long/path/that/goes/on/and/on/and/on/until/it/does/not/fit/into/any/row/of/any/list?and=a&query=too', [], 0.2],
];

const pick = (draw, weighted) => {
  let left = draw() * weighted.reduce((sum, [, weight]) => sum + weight, 0);
  return (weighted.find(([, weight]) => (left -= weight) <= 0) ?? weighted[0])[0];
};

const COUNTRIES = [['US', 34], ['DE', 21], ['GB', 12], ['FR', 9], ['IN', 8], ['BR', 5], ['NL', 4], ['JP', 4], ['CA', 4], ['AU', 3], ['ES', 3], ['SE', 2], ['PL', 2], ['ZA', 1], [null, 2]];
const AGENTS = [
  [['desktop', 'Chrome', 'Windows'], 25], [['desktop', 'Chrome', 'Mac OS X'], 12], [['mobile', 'Mobile Safari', 'iOS'], 24],
  [['mobile', 'Chrome Mobile', 'Android'], 20], [['desktop', 'Firefox', 'Linux'], 6], [['desktop', 'Safari', 'Mac OS X'], 8],
  [['tablet', 'Mobile Safari', 'iPadOS'], 3], [['desktop', 'Edge', 'Windows'], 9],
];
const REFERRERS = [[null, 40], ['google.com', 22], ['t.co', 9], ['linkedin.com', 8], ['news.ycombinator.com', 7], ['mail.google.com', 6], ['reddit.com', 4], ['github.com', 4]];
const CAMPAIGNS = [[[null, null, null], 55], [['newsletter', 'email', 'spring'], 20], [['ads', 'cpc', 'brand'], 14], [['booth', 'qr', 'fair-2026'], 6], [['x', 'social', 'launch'], 5]];

export function makeClick(draw, link, at) {
  const kind = draw();
  const [device, browser, os] = pick(draw, AGENTS);
  const [source, medium, campaign] = pick(draw, CAMPAIGNS);
  return {
    click_id: `clk${id('x').slice(2)}`,
    link_id: link.id,
    slug: link.slug,
    occurred_at: iso(at),
    at,
    class: kind < 0.86 ? 'human' : kind < 0.95 ? 'bot' : 'preview',
    visitor: Math.floor(draw() * 1400),
    country: pick(draw, COUNTRIES),
    device_type: device,
    browser,
    os,
    referrer: pick(draw, REFERRERS),
    utm_source: source,
    utm_medium: medium,
    utm_campaign: campaign,
    utm_term: null,
    utm_content: null,
    external_click_id: draw() < 0.02 ? 'gclid-771' : null,
  };
}

/** New state. `fresh` is a deployment before set-up, `empty` an account without data. */
export function newState({ kind = 'full', plan = 'business' } = {}) {
  drawn = 0;
  const now = Date.now();
  const draw = dice(7);
  const workspaces = [
    { id: id('wsp'), name: 'Acme marketing', kind: 'organization' },
    { id: id('wsp'), name: 'Ada Lovelace', kind: 'personal' },
  ];
  const state = {
    plan,
    setup: kind === 'fresh',
    signedIn: false,
    user: { id: id('usr'), name: 'Ada Lovelace', email: 'ada@example.com', role: 'owner', two_factor: false },
    account: { id: id('acc'), name: 'Acme Inc.' },
    workspaces,
    password: 'correct horse battery',
    links: [],
    clicks: [],
    conversions: [],
    keys: [],
    endpoints: [],
    failures: [],
    // By their ids, those on their way; and what receivers answer next.
    deliveries: new Map(),
    answers: [],
    // Whether the store of the counters is away.
    down: false,
    live: new Set(),
    members: [],
  };
  state.members.push({ ...state.user, created_at: iso(now - 300 * DAY) });
  if (kind !== 'full') return state;
  state.members.push({ id: id('usr'), name: 'Grace Hopper', email: 'grace@example.com', role: 'editor', two_factor: true, created_at: iso(now - 40 * DAY) });

  LINKS.forEach(([slug, name, destination, tags, daily], place) => {
    const created = now - (place < 8 ? 400 - place * 20 : 90 - place * 5) * DAY;
    const link = {
      id: id('lnk'), user_id: state.user.id, workspace: workspaces[0].id, slug, name, destination,
      is_active: slug !== 'old-campaign', is_locked: slug === 'x9Kp2Qa',
      created_at: iso(created), updated_at: iso(created + DAY), revision: 1, external_id: null, tags,
      redirect_status: 302, forward_query: 'append', append_click_id: true,
      expires_at: slug === 'qr-booth' ? iso(now + 20 * DAY) : null,
    };
    state.links.push(link);
    for (let day = Math.min(120, Math.floor((now - created) / DAY)); day >= 0; day--) {
      const date = new Date(now - day * DAY);
      const week = [0.55, 1, 1.15, 1.2, 1.1, 0.95, 0.6][date.getUTCDay()];
      const count = Math.round(daily * week * (1 + (120 - day) / 160) * (0.6 + draw() * 0.8));
      for (let n = 0; n < count; n++) {
        const at = now - day * DAY - Math.floor(draw() * DAY);
        if (at < created) continue;
        const click = makeClick(draw, link, at);
        state.clicks.push(click);
        if (click.class !== 'preview' && draw() < 0.04) {
          state.conversions.push({
            id: id('cnv'), class: click.class, click_id: click.click_id, link_id: link.id, clicked_at: click.occurred_at,
            external_user_id: `u-${1000 + state.conversions.length}`, user_name: null, user_email: null,
            host: 'shop.example.com', page_url: 'https://shop.example.com/thanks', created_at: iso(at + 240_000),
          });
        }
      }
    }
  });
  state.clicks.sort((a, b) => b.at - a.at);
  state.conversions.sort((a, b) => (a.clicked_at < b.clicked_at ? 1 : -1));

  state.keys.push(
    { id: id('key'), name: 'Production', prefix: 'hop_live_8Fk2', scope: 'read,write', created_at: iso(now - 80 * DAY), expires_at: null, last_used_at: iso(now - 65_000), revoked_at: null },
    { id: id('key'), name: 'Reports', prefix: 'hop_live_Qz71', scope: 'read', created_at: iso(now - 20 * DAY), expires_at: iso(now + 70 * DAY), last_used_at: null, revoked_at: null },
    { id: id('key'), name: 'Old laptop', prefix: 'hop_live_mN3x', scope: 'read', created_at: iso(now - 200 * DAY), expires_at: null, last_used_at: iso(now - 90 * DAY), revoked_at: iso(now - 60 * DAY) },
  );
  const endpoint = (url, description, events, more) => {
    const one = {
      id: id('whe'), workspace: workspaces[0].id, url, description, events, click_classes: ['human'], status: 'enabled', disabled_reason: null,
      consecutive_exhausted: 0, is_failing: false, last_success_at: iso(now - 90_000), last_failure_at: null, created_at: iso(now - 30 * DAY), updated_at: iso(now - 3 * DAY), ...more,
    };
    state.endpoints.push(one);
    return one;
  };
  endpoint('https://hooks.example.com/hopline', 'Warehouse', ['click.created', 'link.created', 'link.updated', 'link.deleted']);
  const broken = endpoint('https://crm.example.org/incoming/clicks', 'CRM', ['click.created'], {
    status: 'disabled', consecutive_exhausted: 15,
    disabled_reason: '15 deliveries in a row used up their attempts',
    last_success_at: iso(now - 2 * DAY), last_failure_at: iso(now - 200_000),
  });
  // Each delivery ended with its first attempt, so none used up its attempts.
  const strict = endpoint('https://partner.example.net/events', 'Partner', ['link.created'], {
    is_failing: true, last_failure_at: iso(now - 60_000), last_success_at: null,
  });
  for (let n = 0; n < 19; n++) {
    state.failures.push({
      endpoint: strict.id, delivery_id: `9${String(n).padStart(7, '0')}-6c1e-5d39-9a53-0c6f6a5d1e00`, event: 'link.created', attempt: 1, max_attempts: 5,
      status_code: 400, error_class: null, response_body: '{"error": "unknown event"}', duration_ms: 31,
      attempted_at: iso(now - 60_000 - n * 1_800_000), next_attempt_at: null, delivered_at: null,
    });
  }
  for (let n = 0; n < 6; n++) {
    const delivery = `${'0123456789abcdef'[n]}f4f6b2c-6c1e-5d39-9a53-0c6f6a5d1e${n}0`;
    const began = now - n * 3_600_000 - 200_000;
    const attempts = n === 3 ? 1 : 5;
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const last = attempt === attempts;
      state.failures.push({
        endpoint: broken.id, delivery_id: delivery, event: 'click.created', attempt, max_attempts: 5,
        status_code: n === 3 ? 410 : n === 4 ? null : 500, error_class: n === 4 ? 'timeout' : null,
        response_body: n === 4 ? '' : n === 3 ? 'Gone' : '<html><body><h1>500 Internal Server Error</h1>\n<script>alert("from a receiver")</script></body></html>',
        duration_ms: n === 4 ? 15_000 : 80 + attempt * 13, attempted_at: iso(began + 10_000 * (2 ** (attempt - 1) - 1)),
        next_attempt_at: last ? null : iso(began + 10_000 * (2 ** attempt - 1)),
        delivered_at: n === 5 ? iso(now - 3_600_000) : null,
      });
    }
  }
  state.failures.sort((a, b) => (a.attempted_at < b.attempted_at ? 1 : -1));
  return state;
}
