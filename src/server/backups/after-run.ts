import type { Backup } from '../../kube/index.ts';
import { isJournalSealed } from '../runs/stored-tries.ts';

/** Of a Backup, for the map of its operations. */
export const subjectOf = (backup: Backup) => {
  const { name, uid } = backup.metadata;
  return { kind: 'Backup', name, uid, isSealed: isJournalSealed(backup) } as const;
};
