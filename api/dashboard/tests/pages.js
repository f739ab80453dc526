/** Every page, as it looks. */
import { look, nav, settled } from './browser.js';
import { mock, open, origin, signIn } from './mock.js';

/** Goes through all pages in one look. */
export async function pages(kind) {
  await mock('restart', { kind: 'fresh' });
  const { page, end } = await open(kind, [401, 403, 404]);
  await page.goto(`${origin}/app/`);
  await page.getByRole('heading', { name: 'Welcome to Hopline' }).waitFor();
  await look(page, `${kind}-setup`);

  await mock('restart', {});
  await page.goto(`${origin}/app/`);
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await look(page, `${kind}-sign-in`);
  await signIn(page);
  await page.locator('.spark path').first().waitFor({ state: 'attached' });
  await look(page, `${kind}-links`);
  if (kind.startsWith('phone')) {
    await page.getByRole('button', { name: 'Navigation', exact: true }).click();
    await page.waitForFunction(() => document.querySelector('.side').getBoundingClientRect().left === 0);
    await look(page, `${kind}-drawer`, { full: false });
    await page.keyboard.press('Escape');
  }
  await page.getByRole('link', { name: 'New link' }).click();
  await page.getByLabel('Destination', { exact: true }).fill('https://example.com/landing?utm_source=newsletter');
  await page.getByLabel(/^Name/).fill('Landing page');
  await page.getByText('More options').click();
  await look(page, `${kind}-new-link`);
  await page.goBack();
  await page.getByText('Discard unsaved changes?').waitFor();
  await look(page, `${kind}-leave`, { full: false });
  await page.getByRole('button', { name: 'Discard changes' }).click();
  await page.getByRole('link', { name: 'go.example.com/spring' }).click();
  await page.locator('.u-over').waitFor();
  await settled(page);
  await page.locator('.u-over').hover();
  await look(page, `${kind}-link`);
  await page.getByRole('button', { name: 'QR', exact: true }).click();
  await look(page, `${kind}-qr`, { full: false });
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Show all of Countries' }).click();
  await look(page, `${kind}-countries`, { full: false });
  await page.keyboard.press('Escape');
  await nav(page, 'Links');
  await page.getByRole('link', { name: 'go.example.com/xss' }).click();
  await page.locator('.u-over').waitFor();
  await look(page, `${kind}-link-odd`);
  await nav(page, 'Links');
  await page.getByRole('link', { name: 'go.example.com/x9Kp2Qa' }).click();
  await page.getByText('This link is locked').waitFor();
  await look(page, `${kind}-link-locked`, { full: false });
  await nav(page, 'Overview');
  await page.locator('.u-over').waitFor();
  await look(page, `${kind}-overview`);
  await nav(page, 'Developers');
  await page.getByText('hop_live_8Fk2').waitFor();
  await look(page, `${kind}-developers`);
  await page.getByRole('button', { name: 'New key' }).click();
  await look(page, `${kind}-new-key`, { full: false });
  await page.keyboard.press('Escape');
  await nav(page, 'Webhooks');
  await page.getByText('https://crm.example.org').waitFor();
  await look(page, `${kind}-webhooks`);
  await page.getByRole('link', { name: 'https://crm.example.org' }).click();
  await page.getByText('This endpoint is disabled').waitFor();
  await page.locator('summary').filter({ hasText: 'click.created' }).first().click();
  await look(page, `${kind}-webhook`);
  await nav(page, 'Usage and plan');
  await page.getByText('Click history').waitFor();
  await look(page, `${kind}-usage`);
  await nav(page, 'Members');
  await page.getByText('grace@example.com').first().waitFor();
  await look(page, `${kind}-members`);
  await nav(page, 'Import and export');
  await look(page, `${kind}-transfer`);
  await page.goto(`${origin}/app/wsp_00000000000000000000000000/links`);
  await page.getByText('Page not found').waitFor();
  await look(page, `${kind}-nowhere`);

  await mock('restart', { kind: 'empty', plan: 'free' });
  await signIn(page);
  await page.getByText('Create your first short link').waitFor();
  await look(page, `${kind}-links-empty`);
  await nav(page, 'Webhooks');
  await page.getByText('Webhooks are part of the Agency and Business plans').waitFor();
  await look(page, `${kind}-webhooks-free`);
  await nav(page, 'Developers');
  await page.getByText('No API keys yet').waitFor();
  await look(page, `${kind}-developers-free`);
  await nav(page, 'Usage and plan');
  await page.getByText('of 25').waitFor();
  await look(page, `${kind}-usage-free`);
  await nav(page, 'Overview');
  await page.locator('.u-over').waitFor();
  await look(page, `${kind}-overview-empty`);
  await end();
}
