import { isCode, type Logger, messageOf } from '../../base/index.ts';
import type { Backup } from '../../kube/index.ts';
import {
  deleteNativeSnapshot,
  type StoredSnapshot,
  type StoredSnapshotsOptions,
} from '../backups/stored-snapshots.ts';
import type { DeletionFailures } from './deletion-failures.ts';
import type { DeletionSession } from './contract.ts';
import { CALL_MS_MAX, within } from './call-time-limit.ts';

export interface NativeOptions {
  readonly backup: Backup;
  readonly attempts: DeletionFailures;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** Time limit for one snapshot. Default: `CALL_MS_MAX`. */
  readonly providerMs?: number;
}

/** Timeouts in a row until a location is skipped, because its plugin hangs. Our choice. */
const SILENT_MAX = 3;

/**
 * Deletes a backup's snapshots at providers, each with the plugin of its location. A failure is
 * reported, and the next snapshot follows.
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
/**
 * The message is about another missing object, such as an account. The snapshot may still exist.
 */
const OTHER_IS_GONE =
  /(subscription|resource ?group|project|account|tenant|credentials?|secret|role|user|profile|endpoint|host|region|cluster|config\w*|file|plugin)\W{0,3}(\S+ )?(was |is |could )?(not ?found|not be found|does not exist)/i;

/**
 * Whether the error says that the snapshot does not exist. Providers use their own words, and most
 * plugins report success instead. A wrong match would keep a snapshot forever. So the message must
 * contain its name, and name no other missing object.
 */
export function isGone(error: unknown, id: string): boolean {
  if (!isCode(error, 'PLUGIN_REFUSED')) return false;
  const text = messageOf(error);
  const name = id.split('/').at(-1) ?? id;
  return text.includes(name) && GONE.test(text) && !OTHER_IS_GONE.test(text);
}
