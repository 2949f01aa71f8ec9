/**
 * A process that kills itself at a chosen storage event: `victim.ts MODE REPO TREE EVENT WHEN`.
 * MODE upload (small checkpoints), volume (checkpoints as they are) or maintain. EVENT counts puts and deletes from 0; -1 lives to the end and prints them;
 * `b1000` dies with the first event after 1000 bytes were put.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { faulty, metered, type MeteredStorage } from '../../src/blob/index.ts';
import { silentLogger } from '../../src/base/index.ts';
import { runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { backUp, openTest } from '../support/repositories.ts';

const [mode = '', repo = '', tree = '', eventText = '-1', deathWhen = 'before'] =
  process.argv.slice(2);
const bytesToDeath = eventText.startsWith('b') ? Number(eventText.slice(1)) : Infinity;
const event = Number.isFinite(bytesToDeath) ? Infinity : Number(eventText);
let meter: MeteredStorage | undefined;
const seen: string[] = [];
let count = 0;

/** Which stage of the work an event belongs to. */
function stageOf(operation: string, id: string): string {
  const kind = /^(x[nsrew]|kopia|[pqsnm])/.exec(id)?.[0] ?? 'other';
  return `${operation} ${kind}`;
}

await using repository = await openTest(repo, {
  threads: mode !== 'maintain',
  wrap: (storage) => {
    meter = metered(storage);
    return faulty(meter, ({ operation, id, when }) => {
      if (operation !== 'put' && operation !== 'delete') return;
      if (when === deathWhen) {
        if (count === event || (meter?.counters.bytesUp ?? 0) >= bytesToDeath) {
          process.stdout.write(`${stageOf(operation, id)}\n`);
          process.kill(process.pid, 'SIGKILL');
        }
        seen.push(stageOf(operation, id));
        count++;
      }
    });
  },
});
if (mode === 'volume') {
  await backUp(repository, tree);
} else if (mode === 'upload') {
  // Small checkpoints, so that each stage occurs many times.
  for (const name of readdirSync(tree).sort()) {
    await backUp(repository, join(tree, name), {
      checkpointBytes: 2 << 20,
      checkpointIntervalNs: 3600n * 10n ** 9n,
    });
  }
} else {
  await runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: true,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
  });
}
process.stdout.write(`${JSON.stringify(seen)}\n`);
