/**
 * `npm run bench -- [A C E] [--quick] [--dir D] [--pairs N] [--others N] [--save] [--check]`
 *
 * Compares the engine with the real Kopia, in turn on the same machine. The source is in the page
 * cache, and the repository in the same file system (default: /dev/shm). Both sides use
 * their default settings. Kopia reads back each first backup.
 *
 * `--others`: pairs in which installed peers (rustic, restic, borg) take part. Default: 1.
 * `--save`: puts the table, a chart and all runs into bench/results/.
 * `--check`: names the missed bars, in time and in CPU, and fails if there are any.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { cpus, loadavg, release, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { report } from './compare.ts';
import type { Measurement } from './measure.ts';
import { markdownTable, peersTable, type Result, svgChart } from './report.ts';
import { SCENARIOS } from './scenarios/index.ts';
import { PEERS, type Side } from './peers.ts';
import type { Scenario } from './scenarios/types.ts';
import { findTool } from './tools.ts';
import { FULL, KOPIA, QUICK, Workplace } from './workplace.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    quick: { type: 'boolean', default: false },
    save: { type: 'boolean', default: false },
    dir: { type: 'string', default: '/dev/shm/longshore-bench' },
    pairs: { type: 'string', default: '3' },
    others: { type: 'string', default: '1' },
    check: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  const [text = ''] = fs.readFileSync(import.meta.filename, 'utf8').split('*/');
  console.log(
    text
      .replace(/^\/\*\*\n/, '')
      .replaceAll(/^ \* ?/gm, '')
      .trimEnd(),
  );
  const width = Math.max(...SCENARIOS.map(({ name }) => name.length));
  for (const { name, title } of SCENARIOS) console.log(`  ${name.padEnd(width)}  ${title}`);
  process.exit(0);
}

const RESULTS = new URL('results/', import.meta.url).pathname;
const OTHERS = PEERS.filter((peer) => peer !== 'kopia' && findTool(peer));

async function runScenario(work: Workplace, scenario: Scenario): Promise<Result> {
  const pairs = values.quick ? 1 : Number(values.pairs) * (scenario.isShort ? 3 : 1);
  const runs: Partial<Record<Side, Measurement[]>> = {};
  const storedBytes: Partial<Record<Side, number>> = {};
  for (let pair = 0; pair < pairs; pair++) {
    const others = pair < Number(values.others) && scenario.kopiaOnly !== true ? OTHERS : [];
    for (const side of ['ours', 'kopia', ...others] as const) {
      (runs[side] ??= []).push(await scenario.run(work, side));
      storedBytes[side] = work.bytesStored();
    }
  }
  // Small sizes keep the scenarios alive; their figures are start-up times.
  return {
    scenario: values.quick ? { ...scenario, bar: undefined, cpuBar: 0 } : scenario,
    runs,
    storedBytes,
  };
}

function about(): Record<string, unknown> {
  const git = (...parameters: string[]): string =>
    execFileSync('git', parameters, { cwd: RESULTS, encoding: 'utf8' }).trim();
  const [version = ''] = execFileSync(KOPIA, ['--version'], { encoding: 'utf8' }).split(' ');
  return {
    date: new Date().toISOString().slice(0, 10),
    commit: `${git('rev-parse', '--short', 'HEAD')}${git('status', '--porcelain', '../../src') ? ' and changes' : ''}`,
    node: process.version,
    kopia: version,
    kernel: release(),
    cpu: cpus()[0]?.model,
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
  };
}

if (!fs.existsSync(KOPIA)) throw new Error(`no kopia at ${KOPIA}: run test/peers/install.sh kopia`);
fs.mkdirSync(RESULTS, { recursive: true });
const wanted = SCENARIOS.filter(
  ({ name }) => positionals.length === 0 || positionals.includes(name),
);
const load = loadavg()[0] ?? 0;
if (load > 0.5) console.log(`note: the host has other load (${load.toFixed(1)})`);
if (values.quick) console.log('note: --quick is a small fraction of each size; no bar applies');
// Collect the facts first: the measured code is built from the present tree.
const facts = about();
const work = new Workplace(values.dir, values.quick ? QUICK : FULL);
const results: Result[] = [];
try {
  for (const [i, scenario] of wanted.entries()) {
    const result = await runScenario(work, scenario);
    results.push(result);
    const [header = '', line = '', row = ''] = markdownTable([result]).split('\n');
    console.log(i === 0 ? `${header}\n${line}\n${row}` : row);
    const last = { F: 'small', G: 'sparse', U: 'few', N: 'tiny' }[scenario.name];
    if (last !== undefined) work.drop(last);
  }
} finally {
  fs.rmSync(values.dir, { recursive: true, force: true });
}
const others = peersTable(results);
if (others) console.log(`\n${others}`);
const text = Object.entries(facts).map(([key, value]) => `${key} ${String(value)}`);
console.log(`\n${text.join(', ')}`);
if (values.check) {
  report(
    results.map(({ scenario: { name, title, bar = 0, cpuBar = 0 }, runs }) => ({
      name: `${name}: ${title}`,
      bars: { seconds: bar, cpu: cpuBar, peakMiB: values.quick ? Infinity : 256 },
      ours: runs.ours ?? [],
      kopia: runs.kopia ?? [],
    })),
    true,
  );
}
if (values.save) {
  const missed = load > 0.5 ? `\nThe host had other load (${load.toFixed(1)}).\n` : '';
  const table = `# Longshore and Kopia in turn\n\n${text.join(', ')}\n${missed}\n${markdownTable(results)}\n${others && `\n${others}\n`}`;
  fs.writeFileSync(join(RESULTS, 'report.md'), table);
  fs.writeFileSync(join(RESULTS, 'report.json'), JSON.stringify({ ...facts, results }, null, 1));
  fs.writeFileSync(
    join(RESULTS, 'chart.svg'),
    svgChart(results, 'Wall seconds, shorter is better'),
  );
}
