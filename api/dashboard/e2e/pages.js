/** Every page of the dashboard with what the flows left behind, in one look after the other. */
import { look } from '../tests/browser.js';
import { ask, at, open, run } from './person.js';
import { api, listen, until, visit } from './stack.js';

let made;

/** A link with clicks, and an endpoint that has rejected one. */
async function content(page) {
  const receiver = await listen((_, response) => response.writeHead(410).end('Gone'));
  const events = ['click.created'];
  const endpoint = await ask(page, 'POST', '/webhooks', { url: `${receiver.url}/`, description: 'Warehouse', events });
  const wanted = { name: 'Spring sale', slug: `look-${run}`, destination: 'https://example.com/sale?utm_source=mail', tags: ['sale'] };
  const link = await ask(page, 'POST', '/links', wanted);
  await visit(link.slug, { Referer: 'https://news.example/' });
  await ask(page, 'POST', '/keys', { name: 'Production', scope: 'read,write' });
  const counted = async () => (await ask(page, 'GET', `/links/${link.id}/stats`)).total_clicks === 1;
  const refused = async () => (await ask(page, 'GET', `/webhooks/${endpoint.id}/failures`)).failures.length === 1;
  await until('the click is counted and delivered', async () => (await counted()) && (await refused()));
  receiver.close();
  return { link: link.id, endpoint: endpoint.id };
}

/** Goes through all pages in one look. */
export async function pages(kind) {
  const { page, end } = await open(kind, [404]);
  made ??= await content(page);
  const { link, endpoint } = made;
  const go = async (path, there) => {
    await page.goto(at(path));
    await there.first().waitFor({ state: 'attached' });
  };
  const heading = (name) => page.getByRole('heading', { name });

  await go('/links', page.locator('.spark path'));
  await look(page, `${kind}-links`);
  await go('/links/new', heading('New link'));
  await page.getByText('UTM parameters').click();
  await page.getByText('More options').click();
  await look(page, `${kind}-new-link`);
  await go(`/links/${link}`, page.locator('.u-over'));
  await page.locator('.live.good').waitFor();
  await look(page, `${kind}-link`);
  await page.getByRole('button', { name: 'QR', exact: true }).click();
  await page.waitForFunction(() => document.querySelector('dialog img')?.complete);
  await look(page, `${kind}-qr`, { full: false });
  await go(`/links/${link}/edit`, page.getByRole('button', { name: 'Save changes' }));
  await look(page, `${kind}-edit`);
  await go('/overview', page.locator('.u-over'));
  await look(page, `${kind}-overview`);
  await go('/transfer', heading('Import and export'));
  await look(page, `${kind}-transfer`);
  await go('/developers', page.getByText('Production'));
  await look(page, `${kind}-developers`);
  await page.getByRole('button', { name: 'New key' }).click();
  await look(page, `${kind}-new-key`, { full: false });
  await go('/webhooks', page.getByText('Warehouse'));
  await look(page, `${kind}-webhooks`);
  await page.getByRole('button', { name: 'New endpoint' }).click();
  await look(page, `${kind}-new-endpoint`, { full: false });
  await go(`/webhooks/${endpoint}`, page.getByText('Status 410'));
  await page.getByRole('region', { name: 'Failed deliveries' }).locator('summary').click();
  await look(page, `${kind}-webhook`);
  await go('/usage', page.getByText('Click history'));
  await look(page, `${kind}-usage`);
  await go('/members', page.getByRole('button', { name: 'Add member' }));
  await look(page, `${kind}-members`);
  await go('/account', page.getByText('This browser'));
  await look(page, `${kind}-account`);
  await go('/audit', page.getByRole('cell', { name: 'sign-in' }));
  await look(page, `${kind}-audit`);
  await go('/nowhere', page.getByText('Page not found'));
  await look(page, `${kind}-nowhere`);
  await page.goto(`${api}/api/docs`);
  await page.locator('details').first().waitFor();
  await look(page, `${kind}-reference`);
  await end();
}
