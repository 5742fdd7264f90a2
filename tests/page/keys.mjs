// Every view with the keyboard alone: no mouse is ever moved.
//
// Guarantees: in each view Tab reaches everything that can be used, in the order of the document, and the focus is seen; what a
// mouse does is then done by keys, from the list of jobs to the leaking line, in the blocks, and for a silence that is
// ended. Everything is real (`stage.mjs`). Not walked: the form that silences an alert, which needs one that fires.
//
//     npm ci && node keys.mjs PATH_OF_MEMCTL FOLDER_OF_RECORDINGS

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { browser, daemon, ended, onEveryScreen, output, settled, tabbed, tabTo, temporary, visit, walked } from './stage.mjs';

const [, , memctl = 'memctl', recordings] = process.argv;
const of = await daemon(memctl, temporary());
for (const job of ['gpt_clean', 'oom_by_fragmentation', 'cnn_rank0_cache']) {
  output(memctl, ['import', '-q', '--daemon', of.grpc, '--job', job, join(recordings, job)]);
}
const chromium = await browser();
const { page, complaints } = await visit(chromium, of.http);
const link = (name) => page.getByRole('link', { name, exact: true }).first();
const press = async (...keys) => {
  for (const key of keys) await page.keyboard.press(key);
};
const focused = (name) => page.evaluate(`document.activeElement.getAttribute('${name}')`);
const all = async (where) => {
  await settled(page);
  await tabbed(page, where);
};

await walked(chromium, [
  ['jobs: ordered, grouped, and Back', async () => {
    await page.goto(`${of.http}/`);
    await settled(page);
    const names = async () => page.locator('.jobs tbody th.two a').allInnerTexts();
    const usual = await names();
    await tabTo(page, page.getByRole('button', { name: 'Worst finding' }));
    await press('Enter');
    await page.waitForURL((url) => url.searchParams.get('sort') === '-worst');
    assert.deepEqual(await names(), ['oom_by_fragmentation', 'cnn_rank0_cache', 'gpt_clean']);
    await page.locator('th[aria-sort=descending]').filter({ hasText: 'Worst finding' }).waitFor();
    await page.getByLabel('Groups').selectOption('state');
    await page.waitForURL((url) => url.searchParams.get('group') === 'state');
    assert.deepEqual(await page.locator('.jobs tr.group strong').allInnerTexts(), ['out of memory', 'finished']);
    await onEveryScreen(page, 'jobs in groups');
    await page.goBack();
    await page.goBack();
    await page.waitForURL((url) => url.search === '');
    assert.deepEqual(await names(), usual);
    await page.evaluate("fetch('/api/v1/silence?job=cnn_rank0_cache&minutes=90&comment=known', { method: 'POST' })");
    await page.reload();
    await page.getByRole('row', { name: /^cnn_rank0_cache .*silenced, \d.* more/ }).waitFor();
    await page.evaluate("fetch('/api/v1/silences').then((answer) => answer.json()).then((answer) => fetch('/api/v1/unsilence?id=' + answer.silences[0].id, { method: 'POST' }))");
  }],
  ['jobs: filtered, and the first opened', async () => {
    await page.goto(`${of.http}/`);
    await page.getByRole('row', { name: /cnn_rank0_cache .* remember_features/ }).waitFor();
    await all('jobs');
    await press('/');
    await page.keyboard.type('rank0 leak');
    await page.getByText(/^1 of 3 jobs, 1 with a warning or worse/).waitFor();
    await press('Enter');
    await page.getByRole('heading', { name: 'cnn_rank0_cache', level: 1 }).waitFor();
    // (So a screen reader reads out the new view.)
    await page.locator('h1:focus').waitFor();
  }],
  ['job: what grew is shown, and its line is read', async () => {
    await all('job');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, link('Show me what grew'));
    await press('Enter');
    await page.getByRole('tree').waitFor();
    await all('difference');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('treeitem').first());
    // Down the tree, always the widest below, until the line.
    const seen = [];
    for (let level = 1; level < 40; level += 1) {
      seen.push(await focused('aria-label'));
      if (/^remember_features\s+scenarios\.py:47: /.test(seen.at(-1))) break;
      await press('ArrowDown');
      await page.locator(`[role=treeitem][aria-level="${level + 1}"]:focus`).waitFor();
    }
    assert.match(seen.at(-1), /^remember_features\s+scenarios\.py:47: 12\.9 MiB more, 0 B less/);
    await press('Enter');
    assert.equal(await focused('aria-selected'), 'true');
    await press('Escape');
    await press('Home');
    await page.locator('[role=treeitem][aria-level="1"]:focus').waitFor();
  }],
  ['course: a cursor, a zoom, pins, and what changed between them', async () => {
    await page.goto(`${of.http}/jobs/cnn_rank0_cache?rank=0`);
    await settled(page);
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('application', { name: /Memory of/ }));
    const said = () => page.locator('#course-said').innerText();
    const before = await said();
    await press('Alt+ArrowRight', 'a');
    assert.match(await said(), /^Epoch 0, step \d+, .* allocated \(.* to .*\), .* reserved\.$/);
    assert.notEqual(await said(), before);
    await press('Alt+ArrowRight', 'Alt+ArrowRight', 'Alt+ArrowRight', 'b');
    assert.match(await said(), /^Epoch 3, /);
    await press('+', '+');
    await page.waitForURL((url) => url.search.includes('since='));
    await press('.', ',', '-', '0');
    await page.waitForURL((url) => !url.search.includes('since='));
    await press('p');
    assert.match(await said(), /^Epoch \d+, step/);
    await tabTo(page, link('What changed from A to B'));
    await press('Enter');
    await page.getByRole('heading', { name: /from pin A to pin B/ }).waitFor();
    await page.getByRole('treeitem', { name: /^remember_features/ }).first().waitFor();
  }],
  ['heat map: the odd rank is on top, and another is opened', async () => {
    await page.goto(`${of.http}/jobs/cnn_rank0_cache?rank=0`);
    await settled(page);
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('application', { name: /Ranks by epochs/ }));
    await press('ArrowDown');
    assert.match(await page.locator('#heat-said').innerText(), /^rank 0, end of epoch 5: .*\. above the others from the end of epoch \d on/);
    await press('ArrowLeft');
    assert.match(await page.locator('#heat-said').innerText(), /^rank 0, end of epoch 4: /);
    await page.getByLabel('Quantity').selectOption('reserved');
    await page.waitForURL((url) => url.searchParams.get('heat') === 'reserved_bytes');
    await page.getByRole('application', { name: /Ranks by epochs/ }).focus();
    await press('ArrowRight');
    assert.match(await page.locator('#heat-said').innerText(), /^rank 0, end of epoch 5: reserved 210 MiB, \+16\.0 MiB against the median\./);
    await page.goBack();
    await page.waitForURL((url) => !url.searchParams.has('heat'));
    await page.getByRole('application', { name: /Ranks by epochs/ }).focus();
    await press('ArrowDown', 'Enter');
    await page.waitForURL(/rank=[1-3]/);
  }],
  ['blocks: a block and its stack, events, and a request that finds no place', async () => {
    await page.goto(`${of.http}/jobs/oom_by_fragmentation/blocks?rank=1`);
    await page.getByRole('application', { name: /blocks as rectangles/ }).waitFor();
    await all('blocks');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('button', { name: /^Failed: 1\.00 GiB/ }));
    await press('Enter');
    await page.getByText(/^1\.00 GiB does not fit/).waitFor();
    await page.getByRole('img', { name: /^301 holes with 1\.18 GiB, the largest 4\.61 MiB/ }).waitFor();
    await page.getByText('default stream, larger blocks · 121 segments, 2.41 GiB · the width is 64.0 MiB').waitFor();
    await tabTo(page, page.getByLabel('Width'));
    await page.getByLabel('Width').selectOption('one');
    await page.waitForURL((url) => url.searchParams.get('scale') === 'one' && url.searchParams.get('fit') === '1.00 GiB');
    await page.goBack();
    await page.waitForURL((url) => !url.searchParams.has('scale'));
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('application', { name: /blocks as rectangles/ }));
    await press('ArrowDown', 'ArrowRight');
    await page.locator('#block-said ol li').first().waitFor();
    await page.waitForURL((url) => /^[0-9a-f]+(@\d+)?$/.test(url.searchParams.get('block') ?? ''));
    const one = await page.locator('#block-said').innerText();
    await page.reload();
    await page.locator('#block-said ol li').first().waitFor();
    assert.equal(await page.locator('#block-said').innerText(), one, 'the address says which block');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('application', { name: /blocks as rectangles/ }));
    assert.match(await page.locator('#block-said').innerText(), /requested\), .*\n[^]*allocated in epoch 0/);
    const event = async () => Number(await page.getByRole('slider', { name: 'Event' }).inputValue());
    const at = await event();
    await press(',');
    await page.waitForURL((url) => url.search.includes(`event=${at - 1}`));
    await press('.');
    await page.waitForURL((url) => url.search.includes(`event=${at}`));
    await tabTo(page, page.getByRole('slider', { name: 'Event' }));
    await press('Home', 'ArrowRight', 'ArrowRight');
    await page.waitForURL((url) => url.search.includes('event=2'));
    await page.getByText(/^Event 2, /).waitFor();
  }],
  ['the peak, its settings and other sizes: a limit and a size are typed', async () => {
    await page.goto(`${of.http}/jobs/gpt_clean/moment?rank=0&at=peak`);
    await page.getByRole('table', { name: /by module and site/ }).first().waitFor();
    await all('peak');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, link('Under other settings'));
    await press('Enter');
    await page.getByRole('table', { name: /^Settings, without a limit/ }).waitFor();
    await all('settings');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByLabel('Memory limit of the process'));
    await page.keyboard.type('64MiB');
    await press('Enter');
    await page.getByRole('table', { name: /^Settings under a limit of 64\.0 MiB/ }).waitFor();
    await tabTo(page, page.getByLabel('What number was this recorded at?'));
    await page.keyboard.type('none');
    await press('Enter');
    await page.getByText(/^none is not a size/).waitFor();
    await press('Control+a');
    await page.keyboard.type('8');
    await press('Tab');
    await page.locator('button:focus', { hasText: 'Forecast' }).waitFor();
    await press('Enter');
    await page.getByRole('table', { name: /^Highest memory by size/ }).waitFor();
    await page.waitForURL((url) => url.searchParams.get('size') === '8' && url.searchParams.get('limit') === '64MiB');
    await all('sizes');
  }],
  ['alerts: a silence is ended', async () => {
    await page.goto(`${of.http}/alerts`);
    await page.getByText('Nothing is kept quiet.').waitFor();
    await page.evaluate("fetch('/api/v1/silence?job=cnn_rank0_cache&kind=leak&minutes=60&comment=known', { method: 'POST' })");
    await page.reload();
    await page.getByRole('cell', { name: 'known' }).waitFor();
    await all('alerts');
    await onEveryScreen(page, 'alerts with a silence');
    await page.evaluate("document.querySelector('h1').focus()");
    await tabTo(page, page.getByRole('button', { name: /^End the silence about .*cnn_rank0_cache/ }));
    await press('Enter');
    await page.getByText('Nothing is kept quiet.').waitFor();
  }],
  ['colours: turned, and kept when the page is loaded again', async () => {
    await page.goto(`${of.http}/`);
    await settled(page);
    await tabTo(page, page.getByRole('button', { name: /^Colours/ }));
    await press('Enter', 'Enter');
    assert.equal(await page.evaluate('document.documentElement.dataset.light'), 'dark');
    await page.reload();
    assert.equal(await page.evaluate('document.documentElement.dataset.light'), 'dark');
  }],
  ['nobody complains', async () => { assert.deepEqual(complaints, []); }],
]);
assert.equal(await ended(of.child), 0);
