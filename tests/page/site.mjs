// The page that needs no install, in a real browser without a network: every view of every bundled recording equals the
// daemon's, field by field, and the views are drawn from it.
//
// Guarantees: everything is real: the static folder that browser/pack made, served by a port of this machine until the page is
// loaded; the binary, which imports the same files; Chromium, offline from the moment that the page is loaded. Fails if the
// page requests anything, the browser complains, axe has a finding, an import cannot be stopped, or an unusable file ends with
// another sentence than `memctl import`.
//
//     npm ci && node site.mjs PATH_OF_MEMCTL FOLDER_OF_RECORDINGS FOLDER_OF_THE_SITE

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { browser, daemon, ended, output, settled, sound, temporary, visit, walked } from './stage.mjs';

const [, , memctl = 'memctl', recordings, folder] = process.argv;
const JOBS = readdirSync(recordings, { withFileTypes: true }).filter((entry) => entry.isDirectory()).map((entry) => entry.name);
const VIEWS = [
  'query', 'query?rank=1,2', 'diagnose', 'heat', 'timeline', 'timeline?points=97&floor=true', 'sparkline', 'sites',
  'sites?rank=0&at=peak', 'sites?rank=3&at=end', 'sites?rank=0&at=epoch:1', 'ledger?rank=0', 'ledger?rank=2&blocks=true&at=end', 'oom',
  'flame?rank=0', 'flame?rank=1&at=end&from=epoch:0', 'blocks?rank=0', 'blocks?rank=3&event=1000', 'step?rank=0',
  'step?rank=1&step=2', 'classes?rank=0', 'anatomy?rank=0', 'profile', 'what-if?rank=0', 'what-if?rank=1&limit=3221225472',
  'fit?rank=0&size=8', 'timeline?points=x', 'query?rank=7', 'nothing',
];
/** Fields that depend on when and how a recording was stored. */
const OWN = new Set(['arrived_at', 'stored_bytes']);
const KINDS = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.wasm': 'application/wasm' };

/** A port that serves the folder as any static server does. */
const server = createServer((request, answer) => {
  const path = normalize(decodeURIComponent(new URL(request.url, 'http://x').pathname)).replace(/\/$/, '/index.html');
  try {
    const bytes = readFileSync(join(folder, path));
    answer.writeHead(200, { 'content-type': KINDS[extname(path)] ?? 'application/octet-stream' }).end(bytes);
  } catch {
    answer.writeHead(404).end();
  }
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const http = `http://127.0.0.1:${server.address().port}`;

const of = await daemon(memctl, temporary());
const chromium = await browser();
const { context, page, complaints } = await visit(chromium, http);
// The page's worker, so that it can be asked directly.
await page.addInitScript(() => {
  const Usual = globalThis.Worker;
  globalThis.Worker = class extends Usual {
    constructor(...how) {
      super(...how);
      globalThis.walk_worker = this;
    }
  };
  let number = 1e9;
  globalThis.walk_ask = (address) => new Promise((done) => {
    const id = ++number;
    const hear = ({ data }) => {
      if (data.kind !== 'answer' || data.id !== id) return;
      globalThis.walk_worker.removeEventListener('message', hear);
      done({ status: data.status, text: new TextDecoder().decode(data.content) });
    };
    globalThis.walk_worker.addEventListener('message', hear);
    globalThis.walk_worker.postMessage({ kind: 'get', id, address });
  });
});

const files = (job) => readdirSync(join(recordings, job)).filter((name) => name.endsWith('.zst')).map((name) => join(recordings, job, name));
const without = (value) => JSON.parse(JSON.stringify(value, (name, field) => (OWN.has(name) ? undefined : field)));
const start = async () => {
  await page.evaluate('location.hash = "#/"');
  await page.getByRole('heading', { level: 1, name: /^GPU memory/ }).waitFor();
};
/** Opens files; the view of their job follows. */
const opened = async (paths) => {
  await start();
  await page.locator('input[type=file]').setInputFiles(paths);
  await page.locator('.verdict .headline').waitFor();
};
const named = (job) => files(job).map((path) => ({ name: `${job}-${path.split('/').at(-1)}`, mimeType: '', buffer: readFileSync(path) }));

await walked(chromium, [
  ['the page and a sample come from the folder', async () => {
    const worker = page.waitForEvent('worker');
    await page.goto(`${http}/`);
    await worker;
    await page.getByRole('button', { name: 'lstm_hidden_chain' }).click();
    await page.locator('.verdict .headline').waitFor();
    await start();
    await page.getByRole('link', { name: 'lstm_hidden_chain', exact: true }).waitFor();
    await sound(page, 'the first screen');
    const next = page.waitForEvent('worker');
    await page.reload();
    await next;
  }],
  ['without a network, every view of every recording is the daemon\'s', async () => {
    await context.setOffline(true);
    for (const job of JOBS) {
      await opened(named(job));
      output(memctl, ['import', '-q', '--daemon', of.grpc, '--job', job, join(recordings, job)]);
      for (const view of VIEWS) {
        const address = `jobs/${job}/${view}`;
        const theirs = await fetch(`${of.http}/api/v1/${address}`);
        const ours = await page.evaluate(`walk_ask(${JSON.stringify(address)})`);
        const text = await theirs.text();
        assert.equal(ours.status, theirs.status, `${address}: ${ours.text} ${text}`);
        if (theirs.status === 200) assert.deepEqual(without(JSON.parse(ours.text)), without(JSON.parse(text)), address);
        else assert.equal(ours.text, text, address);
      }
    }
    const ours = await page.evaluate("walk_ask('jobs/gpt_val_graph_leak/diff?before=gpt_clean')");
    const theirs = await (await fetch(`${of.http}/api/v1/jobs/gpt_val_graph_leak/diff?before=gpt_clean`)).text();
    assert.deepEqual(without(JSON.parse(ours.text)), without(JSON.parse(theirs)), 'the comparison');
  }],
  ['the views are drawn', async () => {
    const drawn = async (address, what) => {
      await page.evaluate(`location.hash = ${JSON.stringify(`#/jobs/gpt_val_graph_leak${address}`)}`);
      await what.first().waitFor();
      await settled(page);
      await sound(page, address);
    };
    await drawn('?rank=0', page.locator('svg.course'));
    await drawn('/moment?rank=0&at=epoch:5&from=epoch:1', page.getByText('validate_keeping_graph'));
    await drawn('/moment?rank=0', page.locator('section[aria-labelledby=flame] figure'));
    await drawn('/blocks?rank=0', page.locator('main canvas'));
    await drawn('/settings?rank=0', page.getByRole('table', { name: /^Settings/ }));
    await drawn('/step?rank=0', page.locator('main canvas, main svg'));
  }],
  ['an unusable file ends with the sentence of the command', async () => {
    const place = temporary();
    const cases = { code: '\x80\x04cos\nsystem\n(S\'id\'\ntR.', text: 'hello, this is no pickle at all', empty: '', list: '\x80\x04]\x94.' };
    for (const [name, content] of Object.entries(cases)) {
      const path = join(place, `${name}-rank0.pickle`);
      writeFileSync(path, Buffer.from(content, 'latin1'));
      const refused = spawnSync(memctl, ['import', '-q', '--job', 'j', '--data-dir', join(place, 'd'), path], { cwd: place, encoding: 'utf8' });
      assert.notEqual(refused.status, 0);
      await start();
      await page.locator('input[type=file]').setInputFiles(path);
      const alert = page.getByRole('alert').filter({ hasText: `${name}-rank0.pickle: ` });
      await alert.waitFor();
      const said = (await alert.innerText()).trim();
      assert.ok(refused.stderr.includes(said.slice(said.indexOf(': '))), `${said}\n${refused.stderr}`);
    }
  }],
  ['an import is stopped, and what was open stays open', async () => {
    await start();
    // Enough bytes that reading takes a while: a value is pushed and popped again.
    const large = join(temporary(), 'large-rank0.pickle');
    writeFileSync(large, Buffer.concat([Buffer.from('\x80\x04', 'latin1'), Buffer.alloc(400 << 20, 'K\x010')]));
    await page.locator('input[type=file]').setInputFiles(large);
    await page.getByRole('button', { name: 'Cancel' }).click();
    await page.getByRole('button', { name: 'Cancel' }).waitFor({ state: 'detached' });
    assert.equal(await page.getByRole('alert').count(), 0);
    // (The worker was ended; what was imported is read again.)
    await page.getByRole('link', { name: JOBS[0], exact: true }).click();
    await page.locator('.verdict .headline').waitFor();
    assert.equal((await page.evaluate(`walk_ask('jobs/${JOBS.at(-1)}/query')`)).status, 200);
  }],
]);
// (The worker's script is a part of the page's own.)
assert.deepEqual(complaints.filter((one) => !one.startsWith(`requested blob:${http}/`)), []);
server.close();
assert.equal(await ended(of.child), 0);
