/** The session routes of the mock: method, path, answer. */
import { dice, id, makeClick, newState } from './state.js';

const PLANS = {
  free: { requests_per_minute: 60, links: 25, retention_days: 30 },
  starter: { requests_per_minute: 120, links: 250, retention_days: 90 },
  pro: { requests_per_minute: 300, links: 2500, retention_days: 365 },
  agency: { requests_per_minute: 600, links: 25000, retention_days: 730 },
  business: { requests_per_minute: null, links: null, retention_days: 1095 },
};
const LENGTH = { minute: 60_000, hour: 3_600_000, day: 86_400_000 };
const DAY = LENGTH.day;
const RESERVED = ['api', 'app', 'healthz', 'readyz', 'metrics'];

export class Refusal extends Error {
  constructor(status, code, message, details) {
    super(message);
    this.body = { statusCode: status, code, message, ...(details && { details }) };
  }
}
const wrong = (field, message) => new Refusal(400, 'BAD_REQUEST', `${field} ${message}`, [{ field, message }]);
const missing = () => new Refusal(404, 'NOT_FOUND', 'There is no such thing in this workspace.');

export let state = newState();
export const restart = (options) => (state = newState(options));

const now = () => new Date().toISOString();
const inline = (object, ...hidden) => Object.fromEntries(Object.entries(object).filter(([name]) => !hidden.includes(name)));

function session() {
  if (!state.signedIn) throw new Refusal(401, 'UNAUTHORIZED', 'Sign in first.');
  return {
    user: state.user,
    account: { ...state.account, plan: state.plan },
    workspaces: state.workspaces,
    public_url: 'https://go.example.com',
    attribution: { text: 'IP Geolocation by DB-IP', url: 'https://db-ip.com' },
  };
}

function windowOf(query) {
  const kept = new Date().setUTCHours(0, 0, 0, 0) - PLANS[state.plan].retention_days * DAY;
  const start = Math.max(kept, query.get('start_date') ? Date.parse(query.get('start_date')) : kept);
  const end = query.get('end_date') ? Date.parse(query.get('end_date')) : Date.now();
  if (Number.isNaN(start) || Number.isNaN(end)) throw new Refusal(400, 'INVALID_DATE', 'start_date is no date');
  return { start, end: Math.max(start, end) };
}

/** The clicks that a request is about. */
function clicksOf(links, query, otherwise = 'human') {
  const { start, end } = windowOf(query);
  const wanted = query.get('class') || otherwise;
  const ids = new Set(links.map((link) => link.id));
  return state.clicks.filter(
    (click) => ids.has(click.link_id) && click.at >= start && click.at < end && (wanted === 'all' || click.class === wanted),
  );
}

const visitors = (clicks) => new Set(clicks.map((click) => `${click.link_id} ${click.visitor}`)).size;
const counts = (clicks) => ({ total_clicks: clicks.length, unique_clicks: visitors(clicks) });
const rate = (part, whole) => (whole === 0 ? 0 : Math.round((part / whole) * 10_000) / 100);

function offset(at, zone) {
  const text = new Intl.DateTimeFormat('en-US', { timeZone: zone, timeZoneName: 'longOffset' }).format(at);
  const [, sign, hours, minutes] = /GMT([+-])(\d\d):(\d\d)/.exec(text) ?? [0, '+', 0, 0];
  return (sign === '-' ? -1 : 1) * (Number(hours) * 60 + Number(minutes)) * 60_000;
}

function pointOf(at, interval, zone) {
  const ahead = offset(at, zone);
  if (interval === 'month') {
    const local = new Date(at + ahead);
    return Date.UTC(local.getUTCFullYear(), local.getUTCMonth(), 1) - ahead;
  }
  const local = Math.floor((at + ahead) / LENGTH[interval]) * LENGTH[interval];
  // The clocks may have been changed since the day began.
  return local - offset(local - ahead, zone);
}

function stats(links, query) {
  const { start, end } = windowOf(query);
  const clicks = clicksOf(links, query);
  const interval = query.get('interval') ?? 'day';
  const zone = query.get('timezone') ?? 'UTC';
  const starts = [];
  for (let at = start; at < end; ) {
    const point = pointOf(at, interval, zone);
    if (starts.at(-1) !== point) starts.push(point);
    if (starts.length > 1000) throw wrong('interval', 'gives more than 1000 points for this window');
    at = interval === 'month' ? point + 32 * DAY : interval === 'day' ? point + 25 * LENGTH.hour : point + LENGTH[interval];
    if (interval === 'month' || interval === 'day') at = Math.max(pointOf(at, interval, zone), point + 1);
  }
  const buckets = new Map(starts.map((at) => [at, []]));
  for (const click of clicks) buckets.get(pointOf(click.at, interval, zone))?.push(click);
  const whole = counts(clicks);
  const ids = new Set(links.map((link) => link.id));
  const conversions = conversionsOf(ids, query).length;
  return {
    start_date: new Date(start).toISOString(),
    end_date: new Date(end).toISOString(),
    as_of: new Date(Date.now() - 1200).toISOString(),
    ...whole,
    conversions,
    conversion_rate: rate(conversions, whole.unique_clicks),
    series: starts.map((at) => ({ start: new Date(at).toISOString(), ...counts(buckets.get(at)) })),
  };
}

/** The conversions of the clicks that a request is about. */
function conversionsOf(ids, query) {
  const { start, end } = windowOf(query);
  const wanted = query.get('class') || 'human';
  return state.conversions.filter(
    ({ link_id, clicked_at, class: of }) =>
      ids.has(link_id) && Date.parse(clicked_at) >= start && Date.parse(clicked_at) < end && (wanted === 'all' || of === wanted),
  );
}

function breakdown(links, query, dimension) {
  const { start, end } = windowOf(query);
  const groups = Map.groupBy
    ? Map.groupBy(clicksOf(links, query, dimension === 'class' ? 'all' : 'human'), (click) => click[dimension])
    : clicksOf(links, query, dimension === 'class' ? 'all' : 'human').reduce(
        (map, click) => map.set(click[dimension], [...(map.get(click[dimension]) ?? []), click]),
        new Map(),
      );
  const items = [...groups].map(([value, clicks]) => ({ value, ...counts(clicks) }));
  items.sort((a, b) => b.total_clicks - a.total_clicks);
  return {
    start_date: new Date(start).toISOString(),
    end_date: new Date(end).toISOString(),
    as_of: now(),
    items: items.slice(0, limitOf(query)),
  };
}

function limitOf(query) {
  const limit = Number(query.get('limit') ?? 50);
  if (!(limit >= 1 && limit <= 100)) throw new Refusal(400, 'INVALID_LIMIT', 'limit must be 1 to 100');
  return limit;
}

/** A page of a list; the cursor is the place of its first item. */
function pageOf(items, query) {
  const from = Number(query.get('cursor') ?? 0);
  const to = from + limitOf(query);
  return [items.slice(from, to), to < items.length ? String(to) : null];
}

const unknown = { total_clicks: null, unique_clicks: null, conversions: null };
const item = (link, query) => ({
  ...inline(link, 'workspace', 'revision'),
  ...(state.down ? unknown : { ...counts(clicksOf([link], query)), conversions: conversionsOf(new Set([link.id]), query).length }),
});

function full(link) {
  const whole = counts(clicksOf([link], new URLSearchParams()));
  const conversions = conversionsOf(new Set([link.id]), new URLSearchParams()).length;
  return {
    ...inline(link, 'workspace', 'revision'), ...whole, conversions, conversion_rate: rate(conversions, whole.unique_clicks),
    short_url: `https://go.example.com/${link.slug}`, as_of: now(),
    ...(link.append_click_id && new URL(link.destination).searchParams.has('click_id') && {
      warnings: ['The click_id in the destination is replaced by the ID of each click. To keep it, turn off append_click_id.'],
    }),
  };
}

const tag = (link) => `"${link.revision}"`;
const tagged = (link, status = 200) => ({ status, json: full(link), headers: { ETag: tag(link) } });

function listLinks(links, query) {
  if (query.get('sort') === '-total_clicks') needsCounters();
  const q = query.get('q')?.toLowerCase();
  const flag = (name) => (query.get(name) === null ? () => true : (link) => String(link[name]) === query.get(name));
  const found = links
    .filter((link) => !q || [link.slug, link.name, link.destination].some((text) => text.toLowerCase().includes(q)))
    .filter((link) => !query.get('tag') || link.tags.includes(query.get('tag')))
    .filter(flag('is_active'))
    .filter(flag('is_locked'))
    .map((link) => item(link, query));
  const orders = {
    '-created_at': (a, b) => (a.created_at < b.created_at ? 1 : -1),
    created_at: (a, b) => (a.created_at > b.created_at ? 1 : -1),
    '-total_clicks': (a, b) => b.total_clicks - a.total_clicks,
    name: (a, b) => a.name.localeCompare(b.name),
  };
  found.sort(orders[query.get('sort') ?? '-created_at']);
  const [page, next_cursor] = pageOf(found, query);
  return { links: page, next_cursor };
}

function slugState(slug) {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(slug)) return { available: false, reason: 'malformed' };
  if (RESERVED.includes(slug.toLowerCase())) return { available: false, reason: 'reserved' };
  const taken = state.links.some((link) => link.slug === slug);
  return { available: !taken, reason: taken ? 'taken' : null };
}

function checkLink(body, link) {
  if (body.destination !== undefined && !/^https?:\/\//.test(body.destination)) throw wrong('destination', 'must be an absolute URL');
  if (body.name !== undefined && !body.name.trim()) throw wrong('name', 'must have 1 to 200 characters');
  if (body.slug !== undefined && body.slug !== link?.slug) {
    const { available, reason } = slugState(body.slug);
    if (reason === 'taken') throw new Refusal(409, 'SLUG_TAKEN', 'This slug is taken.');
    if (!available) throw wrong('slug', `is ${reason}`);
  }
}

function createLink(workspace, body) {
  const cap = PLANS[state.plan].links;
  if (cap !== null && state.links.length >= cap) {
    throw new Refusal(403, 'PLAN_LIMIT', `The plan's ${cap} links are used up.`);
  }
  if (!body.name) throw wrong('name', 'is required');
  if (!body.destination) throw wrong('destination', 'is required');
  checkLink(body);
  const link = {
    id: id('lnk'), user_id: state.user.id, workspace, slug: id('x').slice(10, 17), is_active: true, is_locked: false,
    created_at: now(), updated_at: now(), revision: 1, external_id: null, tags: [], redirect_status: 302, forward_query: 'append',
    append_click_id: true, expires_at: null, ...body,
  };
  state.links.push(link);
  return link;
}

function needsWebhooks() {
  if (state.plan !== 'agency' && state.plan !== 'business') {
    throw new Refusal(403, 'PLAN_REQUIRED', 'Webhooks need the Agency or Business plan.');
  }
}

/** The store of the counters may be away. */
function needsCounters() {
  if (state.down) throw new Refusal(503, 'UNAVAILABLE', 'The counters are not known.');
}

const secret = () => `whsec_${Buffer.from(id('x') + id('y')).toString('base64').slice(0, 43)}=`;

/** Puts a delivery on its way. What the endpoint answers is in `state.answers`, 204 after the last. */
function send(endpoint, delivery_id, event) {
  state.deliveries.set(delivery_id, {
    delivery_id, event, status: 'pending', attempts: 0, status_code: null, error_class: null, next_attempt_at: null, delivered_at: null,
  });
}

/** Goes on with a delivery by one attempt, each time that it is asked about. */
function step(endpoint, delivery) {
  const seen = inline(delivery, 'event');
  if (delivery.status !== 'pending') return seen;
  const status = state.answers.shift() ?? 204;
  delivery.attempts += 1;
  endpoint[status < 300 ? 'last_success_at' : 'last_failure_at'] = now();
  endpoint.is_failing = status >= 300;
  if (status < 300) {
    Object.assign(delivery, { status: 'delivered', delivered_at: now(), next_attempt_at: null });
    for (const one of state.failures) if (one.delivery_id === delivery.delivery_id) Object.assign(one, { delivered_at: now(), next_attempt_at: null });
    return seen;
  }
  const ends = status < 500;
  const next_attempt_at = ends ? null : new Date(Date.now() + 10_000).toISOString();
  Object.assign(delivery, { status: ends ? 'failed' : 'pending', status_code: status, next_attempt_at });
  state.failures.unshift({
    endpoint: endpoint.id, delivery_id: delivery.delivery_id, event: delivery.event, attempt: delivery.attempts, max_attempts: 5,
    status_code: status, error_class: null, response_body: 'No', duration_ms: 12, attempted_at: now(), next_attempt_at, delivered_at: null,
  });
  return seen;
}

const csvField = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function runImport(workspace, text, query) {
  const dry = query.get('dry_run') === 'true';
  const [header, ...lines] = text.replace(/^\ufeff/, '').split(/\r?\n/);
  const names = header.split(',').map((name) => name.trim());
  if (!names.includes('destination')) throw wrong('header', 'must name a column destination');
  // The lines of the spreadsheet: the header is the first, and blank ones count.
  const filled = lines.map((line, at) => [line, at + 2]).filter(([line]) => line.trim());
  const results = filled.map(([line, number]) => {
    const result = (status, message) => ({ row: number, status, message, content: line.slice(0, 500) });
    const row = Object.fromEntries(line.split(',').map((cell, column) => [names[column], cell.trim()]));
    try {
      const destination = /^[\w-]+(\.[\w-]+)+/.test(row.destination) ? `https://${row.destination}` : row.destination;
      const body = { name: row.name || destination, destination, ...(row.slug && { slug: row.slug }) };
      if (dry) checkLink(body);
      else createLink(workspace, body);
      return result(201, dry ? 'would be created' : 'created');
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      return result(refusal.body.statusCode, refusal.message);
    }
  });
  const failed = results.filter(({ status }) => status !== 201).length;
  return { import_id: id('imp'), rows: results.length, created: results.length - failed, failed, results, done: true };
}

/** Adds a click of a visitor, and streams it. */
export function clickNow(slug, at = Date.now()) {
  const link = state.links.find((one) => one.slug === slug) ?? state.links[0];
  const click = { ...makeClick(dice(at), link, at), class: 'human' };
  state.clicks.unshift(click);
  for (const listener of state.live) {
    if (!listener.link || listener.link === link.id) listener.send(click);
  }
  return click;
}

const public_click = (click) => inline(click, 'at', 'visitor');

/** What belongs to a workspace, below its path. */
function ofWorkspace(workspace, method, parts, query, body, ifMatch) {
  const links = state.links.filter((link) => link.workspace === workspace.id);
  const endpoints = state.endpoints.filter((endpoint) => endpoint.workspace === workspace.id);
  const [area, name, action, more] = parts;
  const link = area === 'links' && links.find(({ id }) => id === name);
  const endpoint = area === 'webhooks' && endpoints.find(({ id }) => id === name);

  const report = (subject, [what, dimension]) => {
    if (['stats', 'clicks', 'conversions'].includes(what)) needsCounters();
    switch (what) {
      case 'stats':
        return dimension ? breakdown(subject, query, dimension) : stats(subject, query);
      case 'clicks': {
        const clicks = clicksOf(subject, query);
        if (query.get('format') === 'csv') {
          return { csv: ['click_id,slug,occurred_at,class,country', ...clicks.map((one) => [one.click_id, one.slug, one.occurred_at, one.class, one.country ?? ''].join(','))].join('\r\n'), file: 'clicks.csv' };
        }
        const [page, next_cursor] = pageOf(clicks, query);
        return { clicks: page.map(public_click), next_cursor };
      }
      case 'conversions': {
        const found = conversionsOf(new Set(subject.map(({ id }) => id)), query);
        const [page, next_cursor] = pageOf(found.map((one) => inline(one, 'class')), query);
        return { conversions: page, next_cursor };
      }
      case 'live':
        return { live: subject === links ? null : subject[0].id };
    }
    throw missing();
  };

  switch (`${method} ${area}`) {
    case 'GET stats':
    case 'GET clicks':
    case 'GET conversions':
    case 'GET live':
      return report(links, parts);
    case 'GET usage':
      return { plan: state.plan, limits: PLANS[state.plan], used: { links: state.links.length } };
    case 'GET tags':
      return { tags: [...new Set(links.flatMap(({ tags }) => tags))].sort() };
    case 'GET slugs':
      return slugState(name);
    case 'GET sparklines': {
      needsCounters();
      const first = new Date().setUTCHours(0, 0, 0, 0) - 29 * DAY;
      const ids = query.get('ids').split(',');
      const series = Object.fromEntries(ids.map((one) => [one, new Array(30).fill(0)]));
      for (const click of state.clicks) {
        const day = Math.floor((click.at - first) / DAY);
        if (day >= 0 && click.class === 'human' && series[click.link_id]) series[click.link_id][day] += 1;
      }
      return { series };
    }
    case 'GET keys':
      return { keys: state.keys, next_cursor: null };
    case 'POST keys': {
      const key = `hop_live_${id('x').slice(2)}${id('y').slice(2, 14)}`;
      const made = { id: id('key'), name: body.name, prefix: key.slice(0, 13), scope: body.scope, created_at: now(), expires_at: body.expires_at ?? null, last_used_at: null, revoked_at: null };
      state.keys.unshift(made);
      return { status: 201, json: { ...made, key } };
    }
    case 'DELETE keys': {
      const key = state.keys.find(({ id }) => id === name);
      if (!key) throw missing();
      key.revoked_at = now();
      return { status: 204 };
    }
  }

  if (area === 'links') {
    if (name === 'export') return { csv: ['name,destination,slug', ...links.map((one) => [one.name, one.destination, one.slug].map(csvField).join(','))].join('\r\n'), file: 'links.csv' };
    if (name === 'import' && more === 'refused') return { csv: 'row,status,message\r\n', file: 'refused.csv' };
    if (name === 'import') return runImport(workspace.id, body, query);
    if (!name) return method === 'GET' ? listLinks(links, query) : tagged(createLink(workspace.id, body), 201);
    if (!link) throw missing();
    if (action === 'qr') return { qr: `https://go.example.com/${link.slug}` };
    if (action) return report([link], [action, more]);
    if (method === 'GET') return tagged(link);
    if (![undefined, '*', tag(link)].includes(ifMatch)) {
      throw new Refusal(412, 'PRECONDITION_FAILED', 'The link has changed since it was read. Read it again, and repeat the change if it is still right.');
    }
    if (method === 'DELETE') {
      state.links.splice(state.links.indexOf(link), 1);
      return { status: 204 };
    }
    if (link.is_locked) throw new Refusal(403, 'LINK_LOCKED', 'The link is locked: the plan has fewer links. It redirects and can be deleted.');
    checkLink(body, link);
    const differs = Object.keys(body).some((name) => JSON.stringify(body[name]) !== JSON.stringify(link[name]));
    if (differs) Object.assign(link, body, { updated_at: now(), revision: link.revision + 1 });
    return tagged(link);
  }
  if (area === 'webhooks') {
    needsWebhooks();
    const shown = (one) => inline(one, 'workspace', 'answers');
    if (!name && method === 'GET') return { webhooks: endpoints.map(shown), next_cursor: null };
    if (!name) {
      if (!/^https:\/\//.test(body.url)) throw wrong('url', 'must be https');
      const made = { id: id('whe'), workspace: workspace.id, description: '', click_classes: ['human'], status: 'enabled', disabled_reason: null, consecutive_exhausted: 0, is_failing: false, last_success_at: null, last_failure_at: null, created_at: now(), updated_at: now(), ...body };
      state.endpoints.unshift(made);
      return { status: 201, json: { ...shown(made), secret: secret() } };
    }
    if (!endpoint) throw missing();
    switch (`${method} ${action ?? ''}`) {
      case 'GET ':
        return shown(endpoint);
      case 'PATCH ':
        return shown(Object.assign(endpoint, body, { updated_at: now() }));
      case 'DELETE ':
        state.endpoints.splice(state.endpoints.indexOf(endpoint), 1);
        return { status: 204 };
      case 'GET failures': {
        const [page, next_cursor] = pageOf(state.failures.filter((one) => one.endpoint === endpoint.id), query);
        return { failures: page.map((one) => inline(one, 'endpoint')), next_cursor };
      }
      case 'POST rotate-secret':
        return { ...shown(endpoint), secret: secret() };
      case 'POST test': {
        const delivery_id = `7f4f6b2c-6c1e-5d39-9a53-${String(state.deliveries.size).padStart(12, '0')}`;
        send(endpoint, delivery_id, 'endpoint.test');
        return { status: 202, json: { delivery_id } };
      }
      case 'POST redeliver': {
        const ofEndpoint = state.failures.filter((one) => one.endpoint === endpoint.id && (body.delivery_ids || !one.delivered_at));
        const ids = new Set(body.delivery_ids ?? ofEndpoint.map((one) => one.delivery_id));
        for (const one of ids) send(endpoint, one, 'click.created');
        // Nobody asks about each of many: they go on by themselves.
        if (!body.delivery_ids) setTimeout(() => ids.forEach((one) => step(endpoint, state.deliveries.get(one))), 1_200);
        return { status: 202, json: { queued: ids.size } };
      }
      case 'GET deliveries': {
        const delivery = state.deliveries.get(more);
        if (!delivery) throw missing();
        return step(endpoint, delivery);
      }
      case 'POST enable':
        return shown(Object.assign(endpoint, { status: 'enabled', disabled_reason: null, consecutive_exhausted: 0, is_failing: false }));
    }
  }
  throw missing();
}

/** Answers a request below /app/api. */
export function answer(method, path, query, body, ifMatch) {
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  switch (`${method} ${path}`) {
    case 'GET /setup':
      return { needed: state.setup };
    case 'POST /setup':
      if (body.token !== 'let-me-in') throw new Refusal(403, 'FORBIDDEN', 'The set-up token is wrong.');
      if (body.password.length < 12) throw wrong('password', 'must have at least 12 characters');
      Object.assign(state, { setup: false, signedIn: true, password: body.password });
      Object.assign(state.user, { name: body.name, email: body.email });
      return session();
    case 'POST /sign-in':
      if (body.email === 'often@example.com') throw new Refusal(429, 'RATE_LIMITED', 'Too many attempts. Try again later.');
      if (body.email !== state.user.email || body.password !== state.password) {
        throw new Refusal(401, 'UNAUTHORIZED', 'Email or password is wrong.');
      }
      state.signedIn = true;
      return session();
    case 'POST /sign-out':
    case 'POST /sign-out-everywhere':
      state.signedIn = false;
      return { status: 204 };
  }
  const who = session();
  switch (`${method} /${parts[0]}`) {
    case 'GET /session':
      return who;
    case 'GET /members':
      return { members: state.members };
    case 'POST /members':
      if (state.members.some(({ email }) => email === body.email)) throw new Refusal(409, 'EMAIL_TAKEN', 'There is a member with this email.');
      state.members.push({ id: id('usr'), name: body.name ?? '', email: body.email, role: body.role, two_factor: false, created_at: now() });
      return { status: 201, json: { ...state.members.at(-1), ...(body.password ? {} : { password: 'quiet-amber-otter-71' }) } };
    case 'GET /sessions':
      return { sessions: [{ id: id('ses'), created_at: now(), last_seen_at: now(), user_agent: 'Firefox on Linux', is_current: true }] };
    case 'GET /audit':
      return { entries: [{ id: 1, at: now(), actor: state.user.id, action: 'sign-in', subject: state.user.id, workspace_id: null, details: {} }], next_cursor: null };
    case 'POST /password':
      if (body.current_password !== state.password) throw new Refusal(403, 'FORBIDDEN', 'The password is wrong.');
      state.password = body.new_password;
      return { status: 204 };
    case 'PATCH /members':
      return Object.assign(state.members.find((member) => member.id === parts[1]), body);
    case 'DELETE /members':
      if (parts[2] === 'two-factor') {
        state.members.find((member) => member.id === parts[1]).two_factor = false;
        return { status: 204 };
      }
      state.members = state.members.filter((member) => member.id !== parts[1]);
      return { status: 204 };
  }
  if (parts[0] === 'workspaces') {
    if (parts.length === 1 && method === 'GET') return { workspaces: state.workspaces };
    if (parts.length === 1) {
      state.workspaces.push({ id: id('wsp'), ...body });
      return { status: 201, json: state.workspaces.at(-1) };
    }
    const workspace = state.workspaces.find(({ id }) => id === parts[1]);
    if (!workspace) throw missing();
    return ofWorkspace(workspace, method, parts.slice(2), query, body, ifMatch);
  }
  throw missing();
}
