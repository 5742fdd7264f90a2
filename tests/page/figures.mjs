// Every view against the command line's JSON: the same sentences, the same figures to the byte.
//
// Guarantees: a real daemon with three bundled recordings, queried by the page and by `memctl … -o json` at once.
//
//     npm ci && node figures.mjs PATH_OF_MEMCTL FOLDER_OF_RECORDINGS

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { browser, daemon, ended, json, output, settled, temporary, visit, walked } from './stage.mjs';

const [, , memctl = 'memctl', recordings] = process.argv;
const JOBS = ['gpt_val_graph_leak', 'cnn_rank0_cache', 'oom_by_fragmentation'];

const of = await daemon(memctl, temporary());
for (const job of JOBS) output(memctl, ['import', '-q', '--daemon', of.grpc, '--job', job, join(recordings, job)]);
const ask = (...flags) => json(memctl, [...flags, '--daemon', of.grpc]);
const chromium = await browser();
const { page, complaints } = await visit(chromium, of.http);

/** A command without its daemon: the page's commands name none, because each reader has a daemon of their own. */
const withoutPlace = (command) => command.replace(/ --daemon \S+/, '');
const words = (text) => text.replace(/\s+/g, ' ').trim();
const main = async () => words(await page.locator('main').innerText());
/** The exact bytes behind the figures of a row. */
const exact = async (row) => (await row.locator('[title$=" bytes"]').evaluateAll((all) => all.map((one) => one.title)))
  .map((title) => Number(title.replace(/\D/g, '')));
const says = async (sentences) => {
  const text = await main();
  for (const sentence of sentences) assert.ok(text.includes(words(sentence)), `«${sentence}» is not in: ${text.slice(0, 3000)}`);
};
const open = async (path) => {
  await page.goto(`${of.http}${path}`);
  await settled(page);
};

await walked(chromium, [
  ['the list of jobs says each verdict', async () => {
    await open('/');
    const { jobs } = ask('jobs');
    assert.equal(jobs.length, JOBS.length);
    for (const job of jobs) {
      const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: job.id, exact: true }) });
      const text = words(await row.innerText());
      const state = job.verdict.kind === 'out_of_memory' ? 'out of memory' : job.state;
      assert.ok(text.includes(words(job.verdict.sentence)) && text.includes(state), text);
      const cells = await exact(row);
      const { grown_bytes: grown } = job.verdict;
      for (const bytes of [job.stored_bytes, ...(grown === null ? [] : [grown])]) assert.ok(cells.includes(bytes), `${bytes} among ${cells}`);
      const [rank] = ask('query', '--job', job.id).ranks;
      assert.ok(text.includes(`${rank.epochs} epoch`) && text.includes(`${rank.steps} step`), text);
    }
  }],
  ['the growth lane has the live bytes of the finding by epoch, to the byte', async () => {
    for (const [job, rank] of [['gpt_val_graph_leak', 0], ['cnn_rank0_cache', 0]]) {
      await open(`/jobs/${job}?rank=${rank}`);
      const [finding] = ask('query', '--job', job).findings;
      const last = ask('query', '--job', job).ranks[rank].epoch_ends.at(-1).epoch;
      const { sites } = ask('sites', '--job', job, '--rank', String(rank), '--epoch', String(last)).ranks[0];
      const { file, function: name, line } = finding.site;
      const isLine = (call) => call.file === file && call.function === name && [line, ...finding.lines].includes(call.line);
      const isOf = ({ site, stack }) => [...stack, site].some((call) => call !== null && isLine(call));
      const born = Array.from({ length: last + 1 }, () => 0);
      for (const site of sites.filter(isOf)) for (const { epoch, live_bytes } of site.births) born[epoch] += live_bytes;
      assert.ok(born.some((bytes) => bytes > 0), `${job}: the finding's line is live`);
      const bars = await page.locator('.lane g').evaluateAll((all) => all.map((one) => Number(one.dataset.bytes)));
      assert.deepEqual(bars, born, job);
    }
  }],
  ['two runs compared are those of memctl diff, and both courses are drawn', async () => {
    const [before, after] = ['cnn_rank0_cache', 'gpt_val_graph_leak'];
    const diff = ask('diff', before, after);
    assert.ok(diff.sites.length > 3 && diff.classes.length > 1, JSON.stringify(diff.sites));
    await open(`/jobs/${after}/compare?before=${before}`);
    await page.locator('svg path.over0').waitFor({ state: 'attached' });
    await says([diff.sentence, ...diff.new_findings.map((finding) => finding.title)]);
    const figures = page.locator('section[aria-labelledby=figures] tbody tr');
    for (const [at, figure] of diff.figures.filter(({ figure }) => figure.includes('bytes')).entries()) {
      const shown = await exact(figures.nth(at));
      const wanted = [figure.before, figure.after].filter((bytes) => bytes !== null).map(Math.abs);
      assert.deepEqual(shown.slice(0, wanted.length), wanted, figure.figure);
    }
    const sites = page.locator('section[aria-labelledby=sites] .scroll').first().locator('tbody tr');
    for (const [at, site] of diff.sites.slice(0, await sites.count()).entries()) {
      const [{ before_bytes: was, after_bytes: is }, shown] = [site, await exact(sites.nth(at))];
      assert.deepEqual(shown, [was, is, Math.abs(is - was)], JSON.stringify(site));
    }
    // The form opens another comparison, and the address keeps it.
    await open(`/jobs/${after}`);
    await page.getByRole('link', { name: 'Compare with another run' }).click();
    await page.getByLabel('Compare with run').fill(before);
    await page.getByRole('button', { name: 'Compare', exact: true }).click();
    await page.getByText(diff.sentence).waitFor();
    assert.ok(page.url().endsWith(`/compare?before=${before}`), page.url());
    await open(`/jobs/${after}/compare?before=absent`);
    await page.getByText(/The comparison cannot be shown: /).waitFor();
    complaints.splice(0);
  }],
  ['a job says its diagnosis, and each rank its levels', async () => {
    for (const job of JOBS) {
      await open(`/jobs/${job}`);
      const [note, report] = [ask('diagnose', '--job', job), ask('query', '--job', job)];
      await says([note.summary, ...note.findings.map((finding) => finding.title)]);
      await page.locator('summary', { hasText: 'What to change, and how to prove it' }).click();
      // What a replay of allocator settings comes to is among them: page and command line have it from the same place.
      await says(note.questions.flatMap((question) => [question.question, ...question.answer, ...question.commands.map(withoutPlace)]));
      for (const rank of report.ranks) {
        const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: `Show rank ${rank.rank} over time` }) });
        const shown = await exact(row);
        for (const name of ['allocated_bytes', 'peak_allocated_bytes', 'reserved_bytes']) {
          assert.ok(shown.includes(rank[name]), `${job}, rank ${rank.rank}: ${name} ${rank[name]} among ${shown}`);
        }
      }
    }
  }],
  ['a moment says its sites and its ledger', async () => {
    const slice = ['--job', 'gpt_val_graph_leak', '--rank', '0', '--peak'];
    const [sites, ledger] = [ask('sites', ...slice), ask('ledger', ...slice)];
    await open('/jobs/gpt_val_graph_leak/moment?rank=0&at=peak');
    await page.getByRole('tree').waitFor();
    const all = await page.locator('main [title$=" bytes"]').evaluateAll((each) => each.map((one) => Number(one.title.replace(/\D/g, ''))));
    const [rank] = ledger.ranks;
    for (const part of rank.classes) assert.ok(all.includes(part.live_bytes), `${part.class}: ${part.live_bytes}`);
    assert.ok(all.includes(rank.cached_bytes) && all.includes(rank.allocated_bytes), 'cached and allocated');
    const [largest] = sites.ranks?.[0]?.sites ?? sites.sites;
    assert.ok(all.includes(largest.live_bytes), `${largest.function}: ${largest.live_bytes}`);
  }],
  ['a difference says what grew as the moments do', async () => {
    const live = (epoch) => {
      const [rank] = ask('sites', '--job', 'gpt_val_graph_leak', '--rank', '0', '--epoch-end', String(epoch)).ranks;
      const sums = new Map();
      for (const { site, live_bytes } of rank.sites) sums.set(JSON.stringify(site), (sums.get(JSON.stringify(site)) ?? 0) + live_bytes);
      return sums;
    };
    const [early, late] = [live(1), live(5)];
    const grown = [...late].map(([site, bytes]) => bytes - (early.get(site) ?? 0)).sort((a, b) => b - a);
    assert.ok(grown[0] > 50 << 20, String(grown[0]));
    await open('/jobs/gpt_val_graph_leak/moment?rank=0&from=epoch:1&at=epoch:5');
    const rows = page.getByRole('table', { name: 'Sites, what changed most first' }).getByRole('row');
    for (const at of [0, 1, 2]) assert.ok((await exact(rows.nth(at + 1))).includes(grown[at]), `${grown[at]} in ${await rows.nth(at + 1).innerText()}`);
  }],
  ['every arrangement of the flame graph has every byte of the moment once', async () => {
    const [rank] = ask('sites', '--job', 'gpt_val_graph_leak', '--rank', '0', '--peak').ranks;
    const { parts } = await (await fetch(`${of.http}/api/v1/jobs/gpt_val_graph_leak/anatomy?rank=0`)).json();
    const base = '/jobs/gpt_val_graph_leak/moment?rank=0&at=peak';
    const row = async (level) => {
      const names = await page.locator(`[role=treeitem][aria-level="${level}"]`).evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')));
      return names.map((name) => Number(/, ([\d.]+) %, /.exec(name)?.[1] ?? NaN)).reduce((sum, part) => sum + part, 0);
    };
    for (const mode of ['', '&open=all', '&mode=callees', '&mode=callees&open=all', '&mode=modules']) {
      await open(base + mode);
      const root = page.locator('[role=treeitem][aria-level="1"]');
      assert.match(await root.getAttribute('aria-label'), /^everything: 751 MiB, 100\.0 %, /, mode);
      // (What is narrower than a pixel is not drawn.)
      if (mode.includes('callees') || mode.includes('modules')) assert.ok(Math.abs((await row(2)) - 100) < 1, `${mode}: ${await row(2)} %`);
    }
    const line = parts.filter((part) => part.site?.line === 45).reduce((sum, part) => sum + part.live_bytes, 0);
    assert.equal(rank.sites.filter((one) => one.site?.line === 45).reduce((sum, one) => sum + one.live_bytes, 0), line);
    await open(`${base}&mode=callees&open=all`);
    await page.locator('[role=treeitem][aria-level="2"]').first().waitFor();
    await open(base);
    const shown = await exact(page.getByRole('row', { name: /^forward common\.py:45/ }));
    assert.ok(shown.includes(line), `${line} among ${shown}`);
  }],
  ["the heat map has the figures of the epochs' ends", async () => {
    const { ranks } = ask('query', '--job', 'cnn_rank0_cache');
    const end = (rank, name) => ranks.find((one) => one.rank === rank).epoch_ends.at(-1)[name];
    const mib = (bytes) => `${(bytes / 2 ** 20).toPrecision(3)} MiB`;
    for (const [name, text] of [['reserved_bytes', 'reserved '], ['epoch_peak_allocated_bytes', 'peak within the epoch ']]) {
      await open(`/jobs/cnn_rank0_cache?rank=0&heat=${name}`);
      await page.getByRole('application', { name: /Ranks by epochs/ }).focus();
      for (const rank of [0, 1]) {
        await page.keyboard.press('ArrowDown');
        const said = await page.locator('#heat-said').innerText();
        assert.ok(said.startsWith(`rank ${rank}, end of epoch 5: ${text}${mib(end(rank, name))}`), said);
      }
    }
  }],
  ['a failure is marked where it happened', async () => {
    const { failures } = ask('oom', '--job', 'oom_by_fragmentation');
    await open('/jobs/oom_by_fragmentation?rank=1');
    const of_rank = failures.filter((failure) => failure.rank === 1);
    assert.equal(of_rank.length, 1);
    await page.locator('svg.course .mark title').filter({ hasText: 'Out of memory: 1.00 GiB requested' }).first().waitFor({ state: 'attached' });
    await open('/jobs/oom_by_fragmentation/blocks?rank=1');
    await page.getByRole('button', { name: /^Failed: 1.00 GiB at event/ }).click();
    await page.getByText(/^1.00 GiB does not fit/).waitFor();
    const mib = (bytes) => (bytes / 2 ** 20).toPrecision(3);
    await says([`largest hole in segments of larger blocks of the default stream has ${mib(of_rank[0].largest_usable_bytes)} MiB`]);
  }],
  ['a failure is shown at its moment, with the request that does not fit', async () => {
    const [failure] = ask('oom', '--job', 'oom_by_fragmentation').failures.filter((one) => one.rank === 1);
    await open('/jobs/oom_by_fragmentation');
    await page.getByRole('application', { name: /^Memory of rank 1 / }).waitFor();
    await page.getByRole('link', { name: 'Show me what was live when it failed' }).first().click();
    await page.locator('svg.no-room rect.request').waitFor();
    const mib = (bytes) => (bytes / 2 ** 20).toPrecision(3);
    await says(['1.00 GiB did not fit.', `the largest usable hole has ${mib(failure.largest_usable_bytes)} MiB`]);
    const shown = await exact(page.locator('section[aria-labelledby=ledger]'));
    const cached = failure.free_in_cache_bytes - failure.flushed_bytes;
    for (const bytes of [cached, ...failure.classes.map((one) => one.live_bytes)]) assert.ok(shown.includes(bytes), `${bytes} among ${shown}`);
    await page.getByRole('link', { name: 'Blocks at this moment' }).click();
    await page.getByText(/^1.00 GiB does not fit/).waitFor();
  }],
  ["what grew is the finding's, and its line is named where one lands", async () => {
    const [finding] = ask('query', '--job', 'gpt_val_graph_leak').findings;
    await open('/jobs/gpt_val_graph_leak');
    await page.getByRole('link', { name: 'Show me what grew' }).first().click();
    await page.locator('.tree g.leak.outer').first().waitFor({ state: 'attached' });
    assert.match(page.url(), /from=epoch(:|%3A)1&at=epoch(:|%3A)\d+&finding=/);
    const text = words(await page.locator('figure.flame figcaption').innerText());
    assert.match(text, new RegExp(`^${finding.site.function}\\s+\\S+:${finding.site.line} \\+[\\d.]+ MiB in \\d+ blocks`));
    assert.match(text, /MiB to [\d.]+ MiB allocated, \+[\d.]+ MiB: /);
    assert.equal(await page.locator('.tree g.grown, .tree g.shrunk').count(), 0);
    assert.ok((await page.locator('.tree g.leak').count()) > 1);
  }],
  ['a rank that is not there is an error', async () => {
    for (const view of ['', '/moment', '/step', '/blocks', '/settings']) {
      await page.goto(`${of.http}/jobs/gpt_val_graph_leak${view}?rank=99`);
      await page.getByText('There is no rank 99 in this job; it has ranks 0-3.').first().waitFor();
      assert.equal(await page.locator('svg.course').count(), 0);
    }
    // (A rank in the address is asked for at once: the browser reports that it was refused.)
    assert.ok(complaints.splice(0).every((text) => text.includes('400')));
  }],
  ['settings hold what their replays came to', async () => {
    const { ranks: [device], not_looked_at } = ask('what-if', '--job', 'gpt_val_graph_leak', '--rank', '0', '--limit', '700MiB');
    await open('/jobs/gpt_val_graph_leak/settings?rank=0&limit=700MiB');
    const table = page.getByRole('table', { name: /^Settings under a limit of 700 MiB/ });
    const rows = await table.locator('tbody tr').all();
    assert.equal(rows.length, device.settings.length);
    for (const [at, setting] of device.settings.entries()) {
      const text = words(await rows[at].innerText()).toLowerCase();
      assert.ok((await exact(rows[at])).includes(setting.peak_reserved_bytes), text);
      for (const caution of setting.cautions) assert.ok(text.includes(words(caution).toLowerCase()), `${caution}: ${text}`);
      assert.equal(text.includes('out of memory'), setting.out_of_memory !== null, text);
    }
    await says(not_looked_at.filter((sentence) => !sentence.startsWith('3 other ranks')));
  }],
  ['other sizes hold what their forecast says', async () => {
    await open('/jobs/gpt_val_graph_leak/settings?rank=0&limit=700MiB&size=8');
    const table = page.getByRole('table', { name: 'Highest memory by size, forecast from one recording at 8' });
    await table.waitFor();
    const rows = await table.locator('tbody tr').all();
    const sizes = await Promise.all(rows.map(async (row) => (await row.getByRole('rowheader').innerText()).replace(/,/g, '')));
    const words = ['--job', 'gpt_val_graph_leak=8', '--rank', '0', '--device-memory', '700MiB', '--at', sizes.join(',')];
    const { at, largest_that_fits, not_looked_at } = ask('fit', ...words);
    assert.ok(at.length >= 12 && at.some((point) => point.size === 8), sizes.join());
    for (const [place, point] of at.entries()) {
      assert.deepEqual(await exact(rows[place]), [point.peak_allocated_bytes, point.peak_reserved_bytes, point.low, point.high], `at ${point.size}`);
      const text = await rows[place].innerText();
      const fits = point.fits ? 'yes' : point.low <= 700 * 2 ** 20 ? 'unsure' : 'no';
      assert.match(text, new RegExp(`\\t${fits}\\b`), `at ${point.size}`);
      assert.equal(text.includes('★'), point.size === largest_that_fits, text);
    }
    await says([largest_that_fits === null ? 'No size fits in 700 MiB.' : `The largest size that fits in 700 MiB is ${largest_that_fits.toLocaleString('en-US')}.`]);
    await says([...not_looked_at.slice(0, -1), "Memory outside PyTorch's allocator: the context, libraries, other processes."]);
    assert.equal(await page.locator('svg.sizes circle').count(), at.filter((point) => point.size <= 16 * 8).length);
  }],
  ['the peak is taken apart to what its ledger says', async () => {
    const [rank] = ask('ledger', '--job', 'gpt_val_graph_leak', '--rank', '0', '--peak').ranks;
    await open('/jobs/gpt_val_graph_leak/moment?rank=0&at=peak');
    const section = page.locator('section[aria-labelledby=anatomy]');
    const sizes = (await section.locator('summary [title$=" bytes"]').evaluateAll((all) => all.map((one) => one.title))).map((title) => Number(title.replace(/\D/g, '')));
    assert.deepEqual(sizes, rank.classes.map((share) => share.live_bytes));
  }],
  ['a step is painted as high as its memory, and each place says its block', async () => {
    const path = 'jobs/gpt_val_graph_leak/step?rank=0&step=40';
    const answer = await (await page.request.get(`${of.http}/api/v1/${path}`)).json();
    const { points, blocks } = answer;
    await open(`/${path}`);
    const [ledger] = ask('ledger', '--job', 'gpt_val_graph_leak', '--rank', '0', '--peak').ranks;
    assert.deepEqual([answer.of.step, answer.peak.allocated_bytes], [ledger.step, ledger.allocated_bytes], 'the peak of the job is in this step');
    const [tops, height] = await page.evaluate(`(() => {
      const canvas = document.querySelector('canvas.painted');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      const first = (x) => { let y = 0; while (y < canvas.height && data[4 * (y * canvas.width + x) + 3] === 0) y += 1; return y; };
      return [Array.from({ length: canvas.width }, (_, x) => first(x)), canvas.height];
    })()`);
    const events = answer.last_event - answer.first_event + 1;
    const top = answer.peak.allocated_bytes * 1.12;
    for (const [x, y] of tops.entries()) {
      const [from, to] = [Math.floor((x * events) / tops.length + 1e-9), Math.ceil(((x + 1) * events) / tops.length - 1e-9)];
      const highest = Math.max(...points.allocated_bytes.slice(from, to));
      assert.ok(Math.abs(y - height * (1 - highest / top)) <= 1, `column ${x} begins at ${y}, ${highest} bytes`);
    }
    const svg = page.locator('svg.course');
    const { width } = await svg.boundingBox();
    let said = 0;
    for (const [at, y] of [[0, 390], [40, 250], [100, 80], [100, 200], [300, 220], [500, 150], [600, 200], [840, 260]]) {
      await svg.hover({ position: { x: ((at + 0.5) * width) / events, y } });
      const level = top * (1 - y / 400);
      const event = points.event[at];
      const is = (block) => (blocks.from_event[block] ?? 0) <= event && event < (blocks.to_event[block] ?? Infinity);
      const live = blocks.bytes.map((_, block) => block).filter(is);
      let sum = 0;
      const there = live.find((block) => (sum += blocks.bytes[block]) > level);
      if (there === undefined) {
        assert.equal(await page.locator('.tip').count(), 0, `nothing is at event ${at}, ${level}`);
        continue;
      }
      said += 1;
      await page.locator('.tip strong').getByText(`${blocks.bytes[there].toLocaleString('en-US')} bytes`, { exact: true }).waitFor();
    }
    assert.ok(said >= 5, String(said));
    await page.mouse.move(0, 0);
  }],
  ['nobody complains', async () => { assert.deepEqual(complaints, []); }],
]);
assert.equal(await ended(of.child), 0);
