/** The API's answers, as in `/api/openapi.json`; fields that only sessions see are marked. */

export type Plan = 'free' | 'starter' | 'pro' | 'agency' | 'business';
export type Role = 'owner' | 'editor' | 'viewer';
export type ClickClass = 'human' | 'bot' | 'preview';
export type ClassChoice = ClickClass | 'all';
export type Interval = 'minute' | 'hour' | 'day' | 'month';

export interface Session {
  user: { id: string; name: string; email: string; role: Role; two_factor: boolean };
  account: { id: string; name: string; plan: Plan };
  workspaces: Workspace[];
  public_url: string;
  attribution: { text: string; url: string } | null;
}

export interface Workspace {
  id: string;
  name: string;
  kind: 'personal' | 'organization';
}

export interface LinkItem {
  id: string;
  slug: string;
  name: string;
  destination: string;
  is_active: boolean;
  total_clicks: number | null;
  unique_clicks: number | null;
  created_at: string;
  // Sessions only.
  is_locked: boolean;
  tags: string[];
  expires_at: string | null;
  conversions: number | null;
}

export interface Link extends LinkItem {
  user_id: string;
  updated_at: string;
  external_id: string | null;
  redirect_status: 301 | 302 | 307 | 308;
  forward_query: 'off' | 'append';
  append_click_id: boolean;
  is_blocked: boolean;
  blocked_reason: string | null;
  short_url: string;
  conversion_rate: number | null;
  as_of: string | null;
  warnings?: string[];
}

/** The fields of a link that people change. */
export type LinkFields = Pick<
  Link,
  | 'destination'
  | 'slug'
  | 'name'
  | 'tags'
  | 'is_active'
  | 'forward_query'
  | 'append_click_id'
  | 'expires_at'
  | 'redirect_status'
  | 'external_id'
>;

export interface Point {
  start: string;
  total_clicks: number;
  unique_clicks: number;
}

export interface Stats {
  start_date: string;
  end_date: string;
  as_of: string | null;
  total_clicks: number;
  unique_clicks: number;
  // Null when counting took too long.
  conversions: number | null;
  conversion_rate: number | null;
  series: Point[];
}

export interface BreakdownItem {
  value: string | null;
  total_clicks: number;
  unique_clicks: number;
}

export type Dimension =
  | 'country'
  | 'device_type'
  | 'browser'
  | 'os'
  | 'referrer'
  | 'utm_source'
  | 'utm_medium'
  | 'utm_campaign'
  | 'utm_term'
  | 'utm_content'
  | 'class';

export interface Click {
  click_id: string;
  link_id: string;
  slug: string;
  occurred_at: string;
  class: ClickClass;
  country: string | null;
  device_type: string | null;
  browser: string | null;
  os: string | null;
  referrer: string | null;
  utm_source: string | null;
  utm_medium: string | null;
  utm_campaign: string | null;
  utm_term: string | null;
  utm_content: string | null;
  external_click_id: string | null;
}

export interface Conversion {
  id: string;
  click_id: string | null;
  link_id: string;
  clicked_at: string;
  external_user_id: string | null;
  user_name: string | null;
  user_email: string | null;
  host: string | null;
  page_url: string | null;
  created_at: string;
}

export interface Usage {
  plan: Plan;
  limits: { links: number | null; requests_per_minute: number | null; retention_days: number };
  used: { links: number };
}

export interface Key {
  id: string;
  name: string;
  prefix: string;
  scope: 'read' | 'read,write';
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export type EventKind = 'click.created' | 'link.created' | 'link.updated' | 'link.deleted';

export interface Endpoint {
  id: string;
  url: string;
  description: string;
  events: EventKind[];
  click_classes: ClickClass[];
  status: 'enabled' | 'disabled';
  disabled_reason: string | null;
  consecutive_exhausted: number;
  last_success_at: string | null;
  last_failure_at: string | null;
  /** Deliveries that were dropped because too many were waiting. */
  dropped_deliveries: number;
  first_dropped_at: string | null;
  last_dropped_at: string | null;
  /** Enabled, and the newest finished attempt failed. */
  is_failing: boolean;
  created_at: string;
  updated_at: string;
}

export interface Failure {
  delivery_id: string;
  event: string;
  attempt: number;
  max_attempts: number;
  status_code: number | null;
  error_class: string | null;
  response_body: string;
  duration_ms: number;
  attempted_at: string;
  next_attempt_at: string | null;
  /** When the delivery arrived later. */
  delivered_at: string | null;
}

/** The state of a test or redelivery. */
export interface Delivery {
  delivery_id: string;
  status: 'pending' | 'delivered' | 'failed';
  attempts: number;
  // Of the last failed attempt.
  status_code: number | null;
  error_class: string | null;
  next_attempt_at: string | null;
  delivered_at: string | null;
}

export interface Member {
  id: string;
  name: string;
  email: string;
  role: Role;
  /** Only owners see it. */
  two_factor?: boolean;
  created_at: string;
}

export interface SignedInSession {
  id: string;
  created_at: string;
  last_seen_at: string;
  user_agent: string;
  is_current: boolean;
}

export interface AuditEntry {
  id: number;
  at: string;
  actor: string;
  action: string;
  subject: string;
  workspace_id: string | null;
  details: Record<string, unknown>;
}

export interface ImportReport {
  import_id: string | null;
  rows: number;
  created: number;
  failed: number;
  /** `row` is the row in a spreadsheet, `content` its first 500 characters. */
  results: { row: number; status: number; message: string; content: string }[];
  done: boolean;
}
