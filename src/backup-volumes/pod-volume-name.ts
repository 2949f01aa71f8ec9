import { createHash } from 'node:crypto';

const NAME_MAX = 63;

/**
 * The name of a PodVolumeBackup or PodVolumeRestore: the same for the same `what` each time, so
 * that one is found again after a restart. `owner`: the name of the Backup or Restore, of which as
 * much is kept as a label may have.
 */
export function podVolumeName(owner: string, what: string): string {
  const sum = createHash('sha256').update(what).digest('hex').slice(0, 16);
  return `${owner.slice(0, NAME_MAX - sum.length - 1).replace(/[-.]+$/, '')}-${sum}`;
}
