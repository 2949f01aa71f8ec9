/**
 * The work that is killed at each stage. A separate process runs it to be killed there, and this
 * process runs it to its end.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { faulty, metered, type MeteredStorage } from '../../src/blob/index.ts';
import { silentLogger } from '../../src/base/index.ts';
import { runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { backUp, openTest } from '../support/repositories.ts';

/** `upload`: small checkpoints; `volume`: checkpoints as they are. */
export type Mode = 'upload' | 'volume' | 'maintain';

/** Which stage of the work a put or a deletion belongs to. */
export function stageOf(operation: string, id: string): string {
  const kind = /^(x[nsrew]|kopia|[pqsnm])/.exec(id)?.[0] ?? 'other';
  return `${operation} ${kind}`;
}

/** Calls back before and after each put and deletion, with the bytes that were put so far. */
export async function runStages(
  mode: Mode,
  repo: string,
  tree: string,
  onEvent: (operation: string, id: string, when: 'before' | 'after', bytesUp: number) => void,
): Promise<void> {
  let meter: MeteredStorage | undefined;
  await using repository = await openTest(repo, {
    threads: mode !== 'maintain',
    wrap: (storage) => {
      meter = metered(storage);
      return faulty(meter, ({ operation, id, when }) => {
        if (operation !== 'put' && operation !== 'delete') return;
        onEvent(operation, id, when, meter?.counters.bytesUp ?? 0);
      });
    },
  });
  if (mode === 'volume') {
    await backUp(repository, tree);
  } else if (mode === 'upload') {
    // Small checkpoints, so that each stage occurs many times.
    for (const name of readdirSync(tree).sort()) {
      await backUp(repository, join(tree, name), {
        checkpointIntervalNs: 20_000_000n,
        indexIntervalNs: 50_000_000n,
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
}
