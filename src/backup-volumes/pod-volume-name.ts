import { createHash } from 'node:crypto';

const NAME_MAX = 63;

/**
 * The name of a PodVolumeBackup or PodVolumeRestore. The same `what` gives the same name, so a
 * restart finds the object. `owner` is the Backup or Restore name, cut to fit a label.
 */
export function podVolumeName(owner: string, what: string): string {
  const sum = createHash('sha256').update(what).digest('hex').slice(0, 16);
  return `${owner.slice(0, NAME_MAX - sum.length - 1).replace(/[-.]+$/, '')}-${sum}`;
}
