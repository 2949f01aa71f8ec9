import type { Backup } from '../../kube/index.ts';
import { isJournalSealed } from '../runs/journal-tries.ts';

/** The Backup as the operation map identifies it. */
export const subjectOf = (backup: Backup) => {
  const { name, uid } = backup.metadata;
  return { kind: 'Backup', name, uid, isSealed: isJournalSealed(backup) } as const;
};
