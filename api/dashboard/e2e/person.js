/** Somebody at the dashboard: signs in, has a workspace, and asks what the page would ask. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { nav, openAt } from '../tests/browser.js';
import { api, dev, stack } from './stack.js';

/** Runs where a page takes it for more than a text. */
export const HOSTILE = '<img src=x onerror=alert(1)>';

/** Tells this run from others on the same stack. */
export const run = Date.now().toString(36);

export const email = `ada-${run}@example.com`;
export const password = randomBytes(12).toString('base64url');

let state;
let workspace;

/** Opens a page as the person who signed in; `expected` are statuses that a flow provokes. */
export const open = (look, expected = []) => openAt(api, look, { expected, state });

/** The address of a page of the workspace. */
export const at = (path) => `${api}/app/${workspace}${path}`;

/** Asks a session route as the page does; below the workspace unless it is said otherwise. */
export async function ask(page, method, path, data, within = `/workspaces/${workspace}`) {
  const answer = await page.request.fetch(`${api}/app/api${within}${path}`, {
    method,
    headers: { 'X-Requested-With': 'hopline', 'Content-Type': 'application/json' },
    ...(method !== 'GET' && { data: JSON.stringify(data ?? {}) }),
  });
  assert.ok(answer.ok(), `${method} ${path}: ${answer.status()} ${await answer.text()}`);
  return answer.status() === 204 ? null : answer.json();
}

/** Fills the sign-in form in and sends it. */
export async function enter(page, secret = password) {
  await page.getByLabel('Email').fill(email);
  await page.getByLabel('Password').fill(secret);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

/**
 * Lets the person sign in for the first time: sets the deployment up where nobody has, else an operator makes a member.
 *
 * Leads to the sign-in.
 */
export async function arrive(page, name = 'Ada Lovelace') {
  const { needed } = await (await fetch(`${api}/app/api/setup`)).json();
  await page.goto(`${api}/app/`);
  if (!needed) {
    const made = ['create-user', '--account', stack.account_id, '--email', email, '--name', name, '--role', 'owner'];
    dev(['admin', ...made, '--password-stdin', '--json'], password);
    return;
  }
  await page.getByRole('heading', { name: 'Welcome to Hopline' }).waitFor();
  await page.getByLabel('Your name').fill(name);
  await page.getByLabel('Email').fill(email);
  await page.getByLabel('Password').fill(password);
  await page.getByLabel('Setup token').fill('guessed');
  await page.getByRole('button', { name: 'Create account' }).click();
  await page.getByRole('alert').filter({ hasText: 'token is wrong' }).waitFor();
  await page.getByLabel('Setup token').fill(dev(['admin', 'setup-token', '--json']).setup_token);
  await page.getByRole('button', { name: 'Create account' }).click();
  await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
  await leave(page, 'Sign out');
}

/** Signs out, here or everywhere. */
export async function leave(page, how) {
  await page.locator('.person summary').click();
  await page.getByRole('button', { name: how, exact: true }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
}

/** Makes a workspace and chooses it; pages that are opened from now on are signed in and in it. */
export async function settle(page, title) {
  await nav(page, 'Members');
  await page.getByRole('button', { name: 'New workspace' }).click();
  await page.getByLabel('Name', { exact: true }).fill(title);
  const answered = page.waitForResponse((answer) => answer.request().method() === 'POST' && answer.url().endsWith('/workspaces'));
  await page.getByRole('button', { name: 'Create workspace' }).click();
  // By its id: an earlier run may have made one of the same name.
  workspace = (await (await answered).json()).id;
  await page.getByLabel('Workspace', { exact: true }).selectOption(workspace);
  await page.getByText('Create your first short link').waitFor();
  state = await page.context().storageState();
}
