import { printFact } from '../terminal.ts';
import { byPrefixAndTime } from './columns.ts';
import { BACKUP, RESTORE, SCHEDULE } from './noun.ts';
import { withSession } from './session.ts';

/** A shell that waits for names is a shell that hangs. */
const MS_MAX = 2000;

/** Names for a shell to complete; none where the cluster does not tell them soon. */
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
    // Nobody asked for an error in the middle of a line.
  }
}
