import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { systemCode } from '../../base/index.ts';
import { interruptSignal } from '../context.ts';
import { printText } from '../output/streams.ts';

/** The volumes that a waiting pod has mounted. Velero: cmd/velero-restore-helper. */
export const RESTORES_DIRECTORY = '/restores';
const LOOK_MS = 1000;

export interface RestoreHelperOptions {
  /** UID of the Restore. */
  readonly uid: string;
  readonly directory?: string;
  readonly lookMs?: number;
  readonly print: (line: string) => void;
  readonly signal: AbortSignal;
}

/** The image has it as `/velero-restore-helper UID`. */
export function addRestoreHelperVerb(program: Command): void {
  program
    .command('restore-helper', { hidden: true })
    .description('wait in a pod until its volumes are restored')
    .argument('<uid>', 'of the Restore')
    .action(async (uid: string) => {
      const interrupt = interruptSignal();
      try {
        const print = (line: string): void => {
          printText(`${line}\n`);
        };
        await waitForRestores({ uid, print, signal: interrupt.signal });
      } finally {
        interrupt.dispose();
      }
    });
}

/**
 * Runs in a pod before its containers start. Waits until each volume has the mark of this restore,
 * then deletes the marks if it can. No time limit, as in Velero: a user who gives up a restore
 * deletes the pod. Rejects only on abort, and if the directory of volumes is unreadable.
 */
export async function waitForRestores(options: RestoreHelperOptions): Promise<void> {
  const { uid, directory = RESTORES_DIRECTORY, lookMs = LOOK_MS, print, signal } = options;
  for (;;) {
    const entries = await fs.readdir(directory, { withFileTypes: true });
    const volumes = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
    const missing: string[] = [];
    for (const volume of volumes) {
      const mark = join(directory, volume, '.velero', uid);
      const why = await whyNotThere(mark);
      if (why === undefined) continue;
      missing.push(volume);
      print(why);
    }
    if (missing.length === 0) {
      print('All PodVolumeRestores are done');
      for (const volume of volumes) await removeMarks(join(directory, volume, '.velero'), print);
      return;
    }
    await sleep(lookMs, undefined, { signal });
  }
}

async function whyNotThere(mark: string): Promise<string | undefined> {
  try {
    await fs.stat(mark);
    return undefined;
  } catch (error) {
    if (systemCode(error) === 'ENOENT') {
      return `The filesystem restore done file ${mark} is not found yet. Retry later.`;
    }
    return `ERROR looking filesystem restore done file ${mark}: ${(error as Error).message}`;
  }
}

async function removeMarks(folder: string, print: (line: string) => void): Promise<void> {
  try {
    await fs.rm(folder, { recursive: true, force: true });
  } catch (error) {
    print(`${folder} stays, since this user may not remove it: ${(error as Error).message}`);
  }
}
