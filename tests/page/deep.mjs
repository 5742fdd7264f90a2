// Every view of a job of 10^8 events, once with the mouse and once with the keyboard alone. Run by hand, not by `./test`,
// because its store takes minutes to fill. (It has one rank: `keys.mjs` covers ranks side by side.)
//
// Guarantees: everything is real (`stage.mjs`); axe finds nothing, nothing is wider than the screen, nothing is requested from
// elsewhere, and Tab reaches every control. A view that is too large to be answered at once says so, with the command.
//
//     MEMCTL_BENCH_KEEP=FOLDER memctl-bench tiles; npm ci && node deep.mjs PATH_OF_MEMCTL FOLDER JOB

import assert from 'node:assert/strict';
import { browser, daemon, ended, onEveryScreen, settled, tabTo, tabbed, visit, walked } from './stage.mjs';

const [, , memctl = 'memctl', folder, job = 'large'] = process.argv;
const of = await daemon(memctl, folder);
const chromium = await browser();
const { page, complaints } = await visit(chromium, of.http);
const link = (name) => page.getByRole('link', { name, exact: true }).first();
const press = async (...keys) => {
  for (const key of keys) await page.keyboard.press(key);
};
const plot = page.getByRole('application', { name: /Memory of/ });
const blocks = page.getByRole('application', { name: /blocks as rectangles/ });
const top = () => page.evaluate("document.querySelector('h1').focus()");
const sound = async (name) => {
  await onEveryScreen(page, name);
  await tabbed(page, name);
};
const isZoomed = (url) => url.search.includes('since=');
const eventOf = async () => Number(await page.getByRole('slider', { name: 'Event' }).inputValue());

await walked(chromium, [
  ['mouse: from the list into the job', async () => {
    await page.goto(`${of.http}/`);
    await page.getByRole('link', { name: job, exact: true }).click();
    await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
    await sound('job');
  }],
  ['mouse: closer, aside, and back', async () => {
    const box = await page.locator('svg.course').first().boundingBox();
    await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2);
    await page.keyboard.down('Control');
    for (let turn = 0; turn < 12; turn += 1) await page.mouse.wheel(0, -100);
    await page.keyboard.up('Control');
    await page.waitForURL(isZoomed);
    await page.keyboard.down('Shift');
    for (let turn = 0; turn < 6; turn += 1) await page.mouse.wheel(0, 100);
    await page.keyboard.up('Shift');
    await settled(page);
    await page.reload();
    await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
    assert.ok(isZoomed(new URL(page.url())), 'the address says what is in view');
  }],
  ['mouse: a moment, and the peak', async () => {
    await page.goto(`${of.http}/jobs/${job}?rank=0`);
    await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
    await page.goto(`${of.http}/jobs/${job}/moment?rank=0&at=peak`);
    await page.getByRole('heading', { level: 1 }).waitFor();
    await sound('moment');
  }],
  ['mouse: blocks, hovered and played', async () => {
    await page.goto(`${of.http}/jobs/${job}?rank=0`);
    await link('Blocks at the peak').click();
    await blocks.waitFor();
    await page.locator('canvas.blocks').hover({ position: { x: 40, y: 20 } });
    await page.locator('#block-said ol li').first().waitFor();
    const later = page.getByRole('button', { name: 'Later' });
    if (await later.isEnabled()) {
      await later.click();
      await page.waitForURL((url) => url.search.includes('event='));
    }
    await sound('blocks');
  }],
  ['mouse: other settings, of which a daemon says that it is too large', async () => {
    await page.goto(`${of.http}/jobs/${job}/settings?rank=0`);
    await page.getByText(/memctl what-if/).first().waitFor();
    await sound('settings');
  }],
  ['keys: from the list into the job', async () => {
    await page.goto(`${of.http}/`);
    await page.getByRole('link', { name: job, exact: true }).waitFor();
    await settled(page);
    await press('/');
    await page.keyboard.type(job);
    await press('Enter');
    await page.getByRole('heading', { name: job, level: 1 }).waitFor();
    await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
  }],
  ['keys: a cursor, single events, pins', async () => {
    await top();
    await tabTo(page, plot);
    const said = () => page.locator('#course-said').innerText();
    await press('p', 'a');
    const peak = await said();
    assert.match(peak, / allocated/);
    for (let closer = 0; closer < 24; closer += 1) await press('+');
    await page.waitForURL(isZoomed);
    await settled(page);
    await press('ArrowRight', 'ArrowRight', 'b');
    assert.notEqual(await said(), peak);
    await press('.', ',', '-', '0');
    await page.waitForURL((url) => !isZoomed(url));
  }],
  ['keys: blocks, event by event', async () => {
    await top();
    await tabTo(page, page.getByRole('link', { name: /^Blocks at/ }).first());
    await press('Enter');
    await blocks.waitFor();
    await settled(page);
    await top();
    await tabTo(page, blocks);
    await press('ArrowDown', 'ArrowRight');
    await page.locator('#block-said ol li').first().waitFor();
    await press('.');
    await page.waitForURL((url) => url.search.includes('event='));
    const at = await eventOf();
    await press(',');
    await page.waitForURL((url) => url.search.includes(`event=${at - 1}`));
  }],
  // (The browser logs the response that a replay would be too large as an error.)
  ['nobody complains', async () => { assert.deepEqual(complaints.filter((one) => !one.includes('409 (Conflict)')), []); }],
]);
assert.equal(await ended(of.child), 0);
