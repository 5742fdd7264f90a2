// Access and live jobs: readers of two tenants sign in with their tokens, and a job is followed while it trains.
//
// Guarantees: a real daemon with real tokens; the job is streamed by the agent's example, which waits before each epoch. A reader
// sees neither the name nor the existence of another tenant's job.
//
//     npm ci && node people.mjs PATH_OF_MEMCTL FOLDER_OF_RECORDINGS PATH_OF_TRAINER

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beside, browser, daemon, ended, onEveryScreen, output, settled, tabbed, tabTo, temporary, visit, walked } from './stage.mjs';

const [, , memctl = 'memctl', recordings, trainer] = process.argv;
const JOB = 'cnn_rank0_cache';

const home = temporary();
const token = (name, role, tenant) => output(memctl, ['token', 'create', name, '--role', role, '--tenant', tenant, '-q', '--data-dir', home]).trim();
const [reader, stranger, operator] = [token('reader', 'reader', 'vision'), token('stranger', 'reader', 'speech'), token('operator', 'operator', 'vision')];
writeFileSync(join(home, 'operator'), operator, { mode: 0o600 });
writeFileSync(join(home, 'memctl.toml'), '[access]\ntokens = "required"\n');
const closed = await daemon(memctl, home, ['--config', join(home, 'memctl.toml')]);
output(memctl, ['import', '-q', '--daemon', closed.grpc, '--token-file', join(home, 'operator'), '--job', JOB, join(recordings, JOB)]);
const opened = await daemon(memctl, temporary());
const chromium = await browser();
/** The browser's own message about a failed response: expected where access is refused. */
const refused = /Failed to load resource: the server responded with a status of (401|404)/;

/** A visitor who signs in with the keyboard. */
async function signedIn(secret) {
  const visitor = await visit(chromium, closed.http);
  const { page } = visitor;
  await page.goto(`${closed.http}/`);
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await tabTo(page, page.getByLabel('Token'));
  await page.keyboard.type(secret);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Jobs', level: 1 }).waitFor();
  await settled(page);
  return visitor;
}

await walked(chromium, [
  ['nobody sees anything before a token is given, nor with a wrong one', async () => {
    const { page, complaints } = await visit(chromium, closed.http);
    for (const path of ['/', `/jobs/${JOB}`, `/jobs/${JOB}/moment?at=peak`, `/jobs/${JOB}/blocks`, '/alerts']) {
      await page.goto(`${closed.http}${path}`);
      await page.getByRole('heading', { name: 'Sign in' }).waitFor();
      assert.ok(!(await page.locator('body').innerText()).includes('MiB'), path);
    }
    await tabbed(page, 'sign-in');
    await onEveryScreen(page, 'sign-in');
    await tabTo(page, page.getByLabel('Token'));
    await page.keyboard.type('not-a-token');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').waitFor();
    await onEveryScreen(page, 'sign-in, refused');
    assert.ok(!page.url().includes('token'), 'no address has it');
    assert.deepEqual(complaints.filter((complaint) => !refused.test(complaint)), []);
  }],
  ['a reader signs in, reads, may change nothing, and signs out', async () => {
    const { page, context, complaints } = await signedIn(reader);
    await page.getByText('reader of vision').waitFor();
    await page.getByRole('row', { name: /remember_features/ }).waitFor();
    await page.goto(`${closed.http}/jobs/${JOB}`);
    await page.getByRole('link', { name: 'Show me what grew' }).waitFor();
    await page.goto(`${closed.http}/alerts`);
    await settled(page);
    assert.equal(await page.getByRole('button', { name: /^Silence/ }).count(), 0);
    const [cookie] = await context.cookies();
    assert.ok(cookie.httpOnly && cookie.sameSite === 'Strict', JSON.stringify(cookie));
    assert.ok(!(await page.evaluate('JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }])')).includes(reader));
    await tabTo(page, page.getByRole('button', { name: 'Sign out' }));
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    assert.deepEqual(complaints.filter((complaint) => !refused.test(complaint)), []);
  }],
  ['a reader of another tenant sees nothing of it', async () => {
    const { page } = await signedIn(stranger);
    await page.getByText('No jobs yet').waitFor();
    // A query for another tenant's job by name has the same response as one for a job that never existed.
    const answers = [];
    for (const name of [JOB, 'never_was']) {
      for (const path of ['', '/moment?rank=0&at=peak', '/blocks?rank=0']) {
        await page.goto(`${closed.http}/jobs/${name}${path}`);
        await page.getByRole('alert').first().waitFor();
        await settled(page);
        const text = await page.locator('main').innerText();
        assert.ok(!/MiB|remember_features|scenarios\.py/.test(text), text);
        answers.push(text.replaceAll(name, 'JOB'));
      }
    }
    assert.deepEqual(answers.slice(0, 3), answers.slice(3));
    await page.goto(`${closed.http}/alerts`);
    await settled(page);
    assert.ok(!(await page.locator('main').innerText()).includes(JOB));
    for (const tenant of ['vision', '*']) {
      const answer = await page.request.get(`${closed.http}/api/v1/jobs?tenant=${encodeURIComponent(tenant)}`);
      assert.ok(!(await answer.text()).includes(JOB), `${tenant}: ${answer.status()}`);
    }
  }],
  ['the list and a job follow what trains', async () => {
    const { page, complaints } = await visit(chromium, opened.http);
    await page.goto(`${opened.http}/`);
    await page.getByText('No jobs yet').waitFor();
    const training = beside(trainer, [opened.grpc, 'paced']);
    const over = once(training, 'exit');
    const epoch = () => training.stdin.write('\n');
    epoch();
    await page.getByRole('row', { name: /^rust-trainer .*running/ }).waitFor();
    await page.getByRole('link', { name: 'rust-trainer' }).click();
    const cells = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'Show rank 0 over time' }) }).getByRole('cell');
    // (The columns are State, Device, Epochs, Steps, …)
    for (const epochs of ['1', '2', '3']) {
      await cells.nth(2).getByText(epochs, { exact: true }).waitFor();
      assert.equal(await cells.nth(3).innerText(), String(25 * Number(epochs)));
      await page.locator('.faint', { hasText: /^running · / }).waitFor();
      epoch();
    }
    assert.equal((await over)[0], 0);
    await page.locator('.faint', { hasText: /^finished · / }).waitFor();
    await cells.nth(2).getByText('4', { exact: true }).waitFor();
    assert.deepEqual(complaints, []);
  }],
]);
assert.equal(await ended(closed.child), 0);
assert.equal(await ended(opened.child), 0);
