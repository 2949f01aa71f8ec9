/**
 * `node bench/status-page.ts [--backups N] [--running N] [--volumes N] [--rounds N]`: response time
 * of the status page over HTTP, without a login.
 *
 * By default the cluster has 10,000 backups, and 100 of them run. They move 2,000 volumes together,
 * and as many volumes are done. Each page is requested 20 times: unchanged, and after a change of a
 * backup and a volume, so that all rows are sorted again. Prints the median and the longest time of
 * each page in milliseconds, its size, and the memory of the process. The API server is in memory.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { SECOND_NS } from '../src/base/index.ts';
import { BACKUPS, DATA_UPLOADS } from '../src/kube/index.ts';
import { FakeApi } from '../test/server/page/support/fake-api.ts';
import { fill, uploadOf } from '../test/server/page/support/objects.ts';
import { openPage } from '../test/server/page/support/page.ts';

const { values } = parseArgs({
  options: {
    backups: { type: 'string', default: '10000' },
    running: { type: 'string', default: '100' },
    volumes: { type: 'string', default: '2000' },
    rounds: { type: 'string', default: '20' },
  },
});
const [BACKUPS_COUNT, RUNNING, VOLUMES, ROUNDS] = [
  Number(values.backups),
  Number(values.running),
  Number(values.volumes),
  Number(values.rounds),
];
const PHASES = ['Completed', 'Completed', 'Completed', 'PartiallyFailed', 'Failed'];
const NEWEST_MS = Date.parse('2026-11-26T09:59:00Z');
/** The target for the first page of all of them. */
const TARGET_MS = 200;

const backupOf = (at: number, items: number): object => ({
  metadata: {
    name: `backup-${at}`,
    uid: `uid-backup-${at}`,
    labels: { 'velero.io/schedule-name': `schedule-${at % 50}` },
  },
  spec: { storageLocation: 'default', includedNamespaces: [`namespace-${at % 500}`] },
  status: {
    phase: at < RUNNING ? 'InProgress' : PHASES[at % PHASES.length],
    startTimestamp: new Date(NEWEST_MS - at * 240_000).toISOString(),
    ...(at >= RUNNING && { completionTimestamp: new Date(NEWEST_MS).toISOString() }),
    progress: { totalItems: 1000, itemsBackedUp: items },
  },
});
const volumeOf = (at: number, bytesDone: number): object =>
  uploadOf(`volume-${at}`, `backup-${at % RUNNING}`, {
    phase: at < VOLUMES ? 'InProgress' : 'Completed',
    node: `node-${at % 200}`,
    startTimestamp: '2026-11-26T09:50:00Z',
    progress: { bytesDone, totalBytes: 1 << 30 },
    ...(at >= VOLUMES && { completionTimestamp: '2026-11-26T09:55:00Z' }),
  });

const megabytes = (): number => {
  (globalThis as { gc?: () => void }).gc?.();
  return process.memoryUsage().rss / 1e6;
};

const api = new FakeApi();
fill(api);
api.put(BACKUPS, ...Array.from({ length: BACKUPS_COUNT }, (_, at) => backupOf(at, 10)));
api.put(DATA_UPLOADS, ...Array.from({ length: 2 * VOLUMES }, (_, at) => volumeOf(at, 1000)));
const before = megabytes();
await using page = await openPage(api);
while (!(await page.ask('/')).body.includes('claim-volume-0')) await sleep(50);
console.log(
  `${BACKUPS_COUNT} backups, ${RUNNING} of them running with ${VOLUMES} volumes; ${Math.round(megabytes() - before)} MB`,
);
let isSlow = false;
for (const path of ['/', '/?page=50', '/?phase=Failed&prefix=backup-9', '/backups/backup-7']) {
  for (const isChanged of [false, true]) {
    const times: number[] = [];
    let bytes = 0;
    for (let round = 0; round < ROUNDS; round++) {
      if (isChanged) {
        api.put(BACKUPS, backupOf(round % BACKUPS_COUNT, 20 + round));
        api.put(DATA_UPLOADS, volumeOf(round % VOLUMES, 2000 + round));
        api.clock.advance(3n * SECOND_NS);
        await sleep(10);
      }
      const startMs = performance.now();
      bytes = (await page.ask(path)).body.length;
      times.push(performance.now() - startMs);
    }
    times.sort((a, b) => a - b);
    const median = times[times.length >> 1] ?? 0;
    const longest = times.at(-1) ?? 0;
    if (median > TARGET_MS) isSlow = true;
    const shown = isChanged ? 'changed' : 'as it was';
    console.log(
      `${path.padEnd(32)} ${shown.padEnd(10)} ${median.toFixed(1)} ms, at most ${longest.toFixed(1)} ms, ${Math.round(bytes / 1000)} kB`,
    );
  }
}
console.log(isSlow ? `more than ${TARGET_MS} ms` : `within ${TARGET_MS} ms`);
process.exitCode = isSlow ? 1 : 0;
