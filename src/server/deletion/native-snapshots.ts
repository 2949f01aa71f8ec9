import { isCode, type Logger, messageOf } from '../../base/index.ts';
import type { Backup } from '../../kube/index.ts';
import {
  deleteNativeSnapshot,
  type StoredSnapshot,
  type StoredSnapshotsOptions,
} from '../backups/stored-snapshots.ts';
import type { Attempts } from './attempts.ts';
import type { DeletionSession } from './contract.ts';
import { CALL_MS_MAX, within } from './within.ts';

export interface NativeOptions {
  readonly backup: Backup;
  readonly attempts: Attempts;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** How long a provider may take for one; what is said above where it is left out. */
  readonly providerMs?: number;
}

/** Of one location in a row: its plugin hangs, and would for each of thousands. Our choice. */
const SILENT_MAX = 3;

/**
 * Deletes what providers hold for a backup, each by the plugin of its location. What cannot be
 * deleted is told, and the others go.
 */
export async function deleteNative(
  snapshots: readonly StoredSnapshot[],
  session: DeletionSession,
  options: NativeOptions,
): Promise<void> {
  const { attempts, backup, snapshotLocations, logger, assertLeading, signal } = options;
  const silences = new Map<string, number>();
  for (const snapshot of snapshots) {
    const { location, snapshot: id } = snapshot;
    const what = `error deleting snapshot ${id} of volume snapshot location ${JSON.stringify(location)}`;
    const silent = silences.get(location) ?? 0;
    if (silent >= SILENT_MAX) {
      attempts.say(`${what}: its plugin did not answer ${silent} times, and was not asked again`);
      continue;
    }
    await attempts.attempt(what, async () => {
      assertLeading();
      try {
        await within(signal, options.providerMs ?? CALL_MS_MAX, (own) =>
          deleteNativeSnapshot(snapshot, session, snapshotLocations, own),
        );
        silences.delete(location);
      } catch (error) {
        if (isCode(error, 'NO_ANSWER')) silences.set(location, silent + 1);
        else silences.delete(location);
        if (!isGone(error, id)) throw error;
        const fields = { backup: backup.metadata.name, ...snapshot, error: messageOf(error) };
        logger.warn(fields, 'a snapshot is gone already');
      }
    });
  }
}

const GONE = /not ?found|does not exist|no such snapshot/i;
/** What is missing then is not the snapshot, but the way to it. */
const OTHER_IS_GONE =
  /(subscription|resource ?group|project|account|tenant|credentials?|secret|role|user|profile|endpoint|host|region|cluster|config\w*|file|plugin)\W{0,3}(\S+ )?(was |is |could )?(not ?found|not be found|does not exist)/i;

/**
 * Providers say it in their own words, most of them not at all: their plugins take one that is gone
 * for deleted. A snapshot that is taken for gone by mistake stays for ever, so its name has to be
 * in it, and nothing else that is missing.
 */
export function isGone(error: unknown, id: string): boolean {
  if (!isCode(error, 'PLUGIN_REFUSED')) return false;
  const text = messageOf(error);
  const name = id.split('/').at(-1) ?? id;
  return text.includes(name) && GONE.test(text) && !OTHER_IS_GONE.test(text);
}
