/**
 * `node bench/s3.ts [A C D] [--pairs N] [--small] [--requests] [--save]`: scenarios A, C and D on a
 * local S3 server (MinIO).
 *
 * The real Kopia takes turns with us, both with cold caches. A proxy counts the requests of both in
 * runs without timing. `--small` is a tenth of the size. `--requests` only counts.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { Measurement } from './measure.ts';
import { type CountedRequests, markdownTable, requestsTable, type Result } from './report.ts';
import { SCENARIOS } from './scenarios/index.ts';
import type { Side } from './peers.ts';
import { findTool } from './tools.ts';
import { FULL, KOPIA, type Place, QUICK, type Sizes, Workplace } from './workplace.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    pairs: { type: 'string', default: '3' },
    small: { type: 'boolean', default: false },
    requests: { type: 'boolean', default: false },
    save: { type: 'boolean', default: false },
    dir: { type: 'string', default: '/dev/shm/longshore-bench-s3' },
  },
});
const MINIO = findTool('minio');
if (!MINIO || !fs.existsSync(KOPIA)) throw new Error('run test/peers/install.sh kopia minio');

const BARS: Record<string, number> = { A: 1.5, C: 2, D: 1.2 };
const BUCKET = 'bench';
const KEYS = { access: 'peersaccess', secret: 'peerssecret' };
const MINIO_PORT = 19_500;
const wanted = positionals.length === 0 ? Object.keys(BARS) : positionals;
const scenarios = SCENARIOS.filter(({ name }) => wanted.includes(name)).map((scenario) => ({
  ...scenario,
  bar: values.small ? undefined : BARS[scenario.name],
}));
const small: Sizes = { ...QUICK, largeBytes: 300 << 20, smallFiles: 10_000 };
/** Requests do not depend on the machine, so a share of a GB and of a million files is enough. */
const counting: Sizes = { ...QUICK, largeBytes: 128 << 20, tinyFiles: 20_000 };
const sizes = values.small ? small : FULL;

const data = join(values.dir, 'minio');
fs.rmSync(values.dir, { recursive: true, force: true });
fs.mkdirSync(join(data, BUCKET), { recursive: true });
const processes: ChildProcess[] = [];

function start(command: string, parameters: string[], env: NodeJS.ProcessEnv = {}): ChildProcess {
  const child = spawn(command, parameters, {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  processes.push(child);
  return child;
}

const address = `127.0.0.1:${MINIO_PORT}`;
start(MINIO, ['server', '--address', address, '--quiet', data], {
  MINIO_ROOT_USER: KEYS.access,
  MINIO_ROOT_PASSWORD: KEYS.secret,
  MINIO_BROWSER: 'off',
  MINIO_UPDATE: 'off',
}).stdout?.resume();
const counter = start(process.execPath, [
  new URL('request-counter.ts', import.meta.url).pathname,
  `http://${address}`,
]);
const counterPort = await new Promise<number>((resolve) => {
  counter.stdout?.once('data', (text: Buffer) => resolve(Number(text.toString())));
});
for (let i = 0; i < 100; i++) {
  const isUp = await fetch(`http://${address}/minio/health/ready`).then(
    ({ ok }) => ok,
    () => false,
  );
  if (isUp) break;
  await sleep(100);
}

/** A new prefix each time: the server still knows the objects of a removed prefix. */
function bucketAt(endpoint: string): Place {
  let round = 0;
  const prefix = (): string => `${endpoint.replaceAll(/\W/g, '-')}-${round}`;
  return {
    get location() {
      return `s3://${BUCKET}/${prefix()}/?endpoint=http://${endpoint}`;
    },
    get kopia() {
      return [
        ...['s3', '--bucket', BUCKET, '--prefix', `${prefix()}/`, '--disable-tls'],
        ...['--endpoint', endpoint, '--region', 'us-east-1'],
        ...['--access-key', KEYS.access, '--secret-access-key', KEYS.secret],
      ];
    },
    env: { AWS_ACCESS_KEY_ID: KEYS.access, AWS_SECRET_ACCESS_KEY: KEYS.secret },
    get directory() {
      return join(data, BUCKET, prefix());
    },
    clear() {
      fs.rmSync(join(data, BUCKET, prefix()), { recursive: true, force: true });
      round++;
      fs.mkdirSync(join(data, BUCKET, prefix()), { recursive: true });
    },
  };
}

async function timed(): Promise<Result[]> {
  const work = new Workplace(join(values.dir, 'work'), sizes, bucketAt(address));
  const results: Result[] = [];
  for (const scenario of scenarios) {
    const runs: Partial<Record<Side, Measurement[]>> = {};
    const storedBytes: Partial<Record<Side, number>> = {};
    for (let pair = 0; pair < Number(values.pairs); pair++) {
      for (const side of ['ours', 'kopia'] as const) {
        (runs[side] ??= []).push(await scenario.run(work, side));
        storedBytes[side] = work.bytesStored();
      }
    }
    results.push({ scenario, runs, storedBytes });
    console.log(
      markdownTable(results)
        .split('\n')
        .slice(results.length === 1 ? 0 : -1)
        .join('\n'),
    );
  }
  return results;
}

type Counts = Record<string, number>;
type Step = CountedRequests['rows'][number];

/** First backup, unchanged ones and restores of one source, by one side. */
async function countSide(work: Workplace, side: Side, source: 'large' | 'tiny'): Promise<Counts[]> {
  const take = async (): Promise<Counts> =>
    (await (await fetch(`http://127.0.0.1:${counterPort}/counts`)).json()) as Counts;
  const upload = async (): Promise<Counts> => {
    await take();
    await work.upload(side, source);
    return take();
  };
  // The search for the snapshot is not counted.
  const restore = (caches: 'cold' | 'warm'): Promise<Counts> =>
    work.restore(side, source, take, caches).then(take);
  work.need(source);
  work.newRepository(side);
  const counts = [await upload(), await upload()];
  work.dropCaches();
  counts.push(await upload(), await restore('cold'), await restore('warm'));
  return counts;
}

const STEPS = [
  { what: 'first backup', caches: 'cold' },
  { what: 'unchanged', caches: 'warm' },
  { what: 'unchanged', caches: 'cold' },
  { what: 'restore', caches: 'cold' },
  { what: 'restore', caches: 'warm' },
] as const;

async function counted(): Promise<CountedRequests> {
  const place = bucketAt(`127.0.0.1:${counterPort}`);
  const work = new Workplace(join(values.dir, 'count'), counting, place);
  const rows: Step[] = [];
  for (const [source, size, unit] of [
    ['large', counting.largeBytes / 1e9, 'GB'],
    ['tiny', counting.tinyFiles / 1e6, 'million files'],
  ] as const) {
    const ours = await countSide(work, 'ours', source);
    const kopia = await countSide(work, 'kopia', source);
    STEPS.forEach((step, i) => {
      rows.push({ ...step, size, unit, ours: ours[i] ?? {}, kopia: kopia[i] ?? {} });
    });
  }
  return {
    date: new Date().toISOString().slice(0, 10),
    kopia: work.kopia('--version').split(' ')[0] ?? '',
    rows,
  };
}

try {
  const requests = await counted();
  console.log(requestsTable(requests));
  const save = (name: string, text: string): void => {
    if (values.save) fs.writeFileSync(new URL(`results/${name}`, import.meta.url), text);
  };
  save('requests.json', `${JSON.stringify(requests, undefined, 2)}\n`);
  if (!values.requests) {
    const results = await timed();
    save('s3.md', `# Longshore and Kopia in turn on MinIO\n\n${markdownTable(results)}\n`);
  }
} finally {
  for (const child of processes) child.kill('SIGKILL');
  fs.rmSync(values.dir, { recursive: true, force: true });
}
