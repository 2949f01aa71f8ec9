import { printFact } from '../output/terminal.ts';
import { byPrefixAndTime } from './columns.ts';
import { BACKUP, RESTORE, SCHEDULE } from './noun.ts';
import { withSession } from './session.ts';

/** The shell waits for this command, so the time is short. */
const MS_MAX = 2000;

/** Names for shell completion; none if the cluster does not answer in time. */
export async function printNames(word: 'backup' | 'restore' | 'schedule'): Promise<void> {
  const { resource } = { backup: BACKUP, restore: RESTORE, schedule: SCHEDULE }[word];
  try {
    await withSession({}, async ({ client, namespace, signal: own }) => {
      const signal = AbortSignal.any([own, AbortSignal.timeout(MS_MAX)]);
      const names = await client.collect(resource, { namespace, signal }, ({ metadata }) => [
        { name: metadata.name, cells: [] },
      ]);
      for (const { name } of names.sort(byPrefixAndTime)) printFact(name);
    });
  } catch {
    // Completion must not print errors.
  }
}
