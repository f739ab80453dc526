/** Requests to the session routes of the API. */

/** A failed request. */
export class Fault extends Error {
  /** @param status 0 without an answer. */
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: { field: string; message: string }[] = [],
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }

  /** Whether the server or an engine is temporarily unavailable. */
  get isAway(): boolean {
    return this.code === 'UNREACHABLE' || [502, 503, 504].includes(this.status);
  }

  /** The fault of a field. */
  about(field: string): string | undefined {
    return this.details.find((detail) => detail.field === field)?.message;
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

interface Options {
  query?: Query;
  json?: unknown;
  csv?: Blob | string;
  /** The idempotency key. */
  key?: string;
  /** The revision that is changed: if there is a newer one by now, nothing changes and the answer is 412. */
  revision?: string;
  signal?: AbortSignal;
}

const ROOT = '/app/api';

/** The URL of a route, without empty parameters. */
export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return ROOT + path + (text ? `?${text}` : '');
}

/** A unique key. Not `randomUUID`, which browsers offer only with TLS. */
export const newKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

let signedOut: () => void = () => {};

/** Sets the handler for answers that nobody is signed in. */
export function whenSignedOut(then: () => void) {
  signedOut = then;
}

/**
 * Sends a request, and returns its answer unless it failed.
 *
 * @throws {Fault}
 */
async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' };
  let body: BodyInit | undefined;
  if (method !== 'GET') {
    // The server rejects changes without it: no form of another site can send it.
    headers['X-Requested-With'] = 'hopline';
    headers['Content-Type'] = options.csv === undefined ? 'application/json' : 'text/csv';
    if (options.key) headers['Idempotency-Key'] = options.key;
    if (options.revision) headers['If-Match'] = `"${options.revision}"`;
    body = options.csv ?? JSON.stringify(options.json ?? {});
  }
  let response: Response;
  try {
    response = await fetch(address(path, options.query), { method, headers, body, signal: options.signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Fault(0, 'UNREACHABLE', 'Can’t reach the server. Check your connection and try again.');
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  if (response.status === 401 && path !== '/sign-in') signedOut();
  throw new Fault(
    response.status,
    answer?.code ?? 'INTERNAL',
    answer?.message ?? `The server returned an unexpected error (status ${response.status}).`,
    answer?.details,
    Number(response.headers.get('Retry-After')) || null,
  );
}

/**
 * Sends a request and parses the JSON of the answer.
 *
 * @throws {Fault}
 */
export async function request<T>(method: string, path: string, options?: Options): Promise<T> {
  const response = await send(method, path, options);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

/**
 * Reads a value and its revision, which is the number in the ETag: proxies that compress send W/"3" or "3-gzip" for "3".
 *
 * @throws {Fault}
 */
export async function getWithRevision<T>(path: string): Promise<{ value: T; revision: string | undefined }> {
  const response = await send('GET', path);
  const revision = /\d+/.exec(response.headers.get('ETag') ?? '')?.[0];
  return { value: (await response.json()) as T, revision };
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) =>
  request<T>('GET', path, { query, signal });
export const post = <T>(path: string, json?: unknown) => request<T>('POST', path, { json });
export const patch = <T>(path: string, json: unknown, query?: Query) => request<T>('PATCH', path, { json, query });
export const remove = (path: string, options: Options = {}) => request<void>('DELETE', path, options);

/** Converts anything thrown to a Fault. */
export const asFault = (error: unknown): Fault =>
  error instanceof Fault ? error : new Fault(0, 'INTERNAL', 'Something went wrong. Reload the page and try again.');
